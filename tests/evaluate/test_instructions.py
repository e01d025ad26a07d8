from __future__ import annotations

import json

import pytest

from attn_tune.evaluate.amdgcn import AMDGCN
from attn_tune.evaluate.assembly import hot_loops
from attn_tune.evaluate.control_flow import Instruction
from attn_tune.evaluate.instructions import InstructionSet, rules
from attn_tune.evaluate.resources import InstructionMix, Resources
from attn_tune.evaluate.sass import SASS


def mix_of(instruction_set: InstructionSet, text: str) -> InstructionMix:
    opcode, _, operands = text.partition(" ")
    return instruction_set.mix([Instruction(opcode, operands)])


@pytest.mark.parametrize(
    ("text", "field", "width"),
    [
        ("buffer_load_dwordx4 v[10:13], v2, s[8:11], 0 offen", "global_loads", 16),
        ("buffer_load_dwordx4 v4, s[20:23], 0 offen lds", "async_copies", 16),
        ("buffer_load_dword v4, s[20:23], 0 offen lds", "async_copies", 4),
        ("global_load_lds_dwordx4 v[0:1], off", "async_copies", 16),
        ("global_load_async_to_lds_b128 v1, v[2:3], off", "async_copies", 16),
        ("global_load_async_to_lds_b32 v1, v[2:3], off", "async_copies", 4),
        ("tensor_load_to_lds s[0:3], s[4:11]", "async_copies", 0),
        ("global_load_dwordx2 v[0:1], v[2:3], off", "global_loads", 8),
        ("global_load_dwordx3 v[0:2], v[4:5], off", "global_loads", 12),
        ("global_load_ubyte v0, v[2:3], off", "global_loads", 1),
        ("buffer_load_ubyte_d16_hi v0, v2, s[0:3], 0", "global_loads", 1),
        ("global_load_short_d16 v0, v[2:3], off", "global_loads", 2),
        ("global_load_d16_hi_u8 v0, v[2:3], off", "global_loads", 1),
        ("global_load_b96 v[0:2], v[2:3], off", "global_loads", 12),
        ("global_load_tr16_b128 v[0:3], v[4:5], off", "global_loads", 16),
        ("flat_load_u16 v0, v[2:3]", "global_loads", 2),
        ("buffer_store_b128 v[0:3], v4, s[0:3], 0", "global_stores", 16),
        ("ds_read_b128 v[0:3], v4", "lds_reads", 16),
        ("ds_read2_b64 v[0:3], v4 offset1:1", "lds_reads", 16),
        ("ds_read_b64_tr_b16 v[0:1], v4", "lds_reads", 8),
        ("ds_load_2addr_b64 v[0:3], v4", "lds_reads", 16),
        ("ds_load_tr8_b64 v[0:1], v4", "lds_reads", 8),
        ("ds_read_u8 v0, v4", "lds_reads", 1),
        ("ds_bpermute_b32 v0, v1, v2", "lds_reads", 4),
        ("ds_write2st64_b64 v0, v[2:3], v[4:5]", "lds_writes", 16),
        ("ds_store_b16_d16_hi v0, v1", "lds_writes", 2),
    ],
)
def test_amd_memory_instructions_by_width(text: str, field: str, width: int) -> None:
    mix = mix_of(AMDGCN, text)
    assert getattr(mix, field) == {width: 1}
    assert mix.total == 1


@pytest.mark.parametrize(
    ("text", "field", "width"),
    [
        ("LDG.E.128 R4, [R2.64]", "global_loads", 16),
        ("LDG.E R4, [R2.64]", "global_loads", 4),
        ("LDG.E.U8 R4, [R2.64]", "global_loads", 1),
        ("LDG.E.U16.CONSTANT R4, [R2.64]", "global_loads", 2),
        ("STG.E.64 [R2.64], R4", "global_stores", 8),
        ("LDGSTS.E.BYPASS.128 [R1], [R2.64]", "async_copies", 16),
        ("LDGSTS.E.64 [R1], [R2.64]", "async_copies", 8),
        ("LDGSTS.E [R1], [R2.64]", "async_copies", 4),
        ("UTMALDG.2D [UR8], [UR4]", "async_copies", 0),
        ("LDS.U8 R4, [R2]", "lds_reads", 1),
        ("LDS.128 R4, [R2]", "lds_reads", 16),
        ("LDSM.16.M88.4 R4, [R2]", "lds_reads", 16),
        ("LDSM.16.M88 R4, [R2]", "lds_reads", 4),
        ("SHFL.BFLY PT, R4, R2, 0x1, 0x1f", "lds_reads", 4),
        ("STSM.16.MT88.2 [R2], R4", "lds_writes", 8),
    ],
)
def test_nvidia_memory_instructions_by_width(text: str, field: str, width: int) -> None:
    mix = mix_of(SASS, text)
    assert getattr(mix, field) == {width: 1}
    assert mix.total == 1


@pytest.mark.parametrize(
    ("instruction_set", "opcode", "flops"),
    [
        (AMDGCN, "v_mfma_f32_32x32x8_bf16", 2 * 32 * 32 * 8),
        (AMDGCN, "v_mfma_f32_32x32x8bf16_1k", 2 * 32 * 32 * 8),
        (AMDGCN, "v_mfma_f32_4x4x4_16b_f16", 2 * 4 * 4 * 4 * 16),
        (AMDGCN, "v_mfma_scale_f32_16x16x128_f8f6f4", 2 * 16 * 16 * 128),
        (AMDGCN, "v_wmma_f32_16x16x128_fp8_fp8", 2 * 16 * 16 * 128),
        (SASS, "HMMA.16816.F32.BF16", 2 * 16 * 8 * 16),
        (SASS, "HMMA.1688.F32", 2 * 16 * 8 * 8),
        (SASS, "QMMA.16832.F32.E4M3.E4M3", 2 * 16 * 8 * 32),
        (SASS, "HGMMA.64x128x16.F32.BF16", 2 * 64 * 128 * 16 // 4),
        (SASS, "UTCHMMA", 0),
    ],
)
def test_matrix_instructions_and_their_flops(instruction_set: InstructionSet, opcode: str, flops: int) -> None:
    mix = mix_of(instruction_set, opcode)
    assert mix.matrix == {opcode: 1}
    assert mix.matrix_flops == flops


@pytest.mark.parametrize(
    ("instruction_set", "text", "field"),
    [
        (AMDGCN, "v_exp_f32_e32 v0, v1", "transcendental"),
        (AMDGCN, "v_s_rcp_f32 s0, s1", "transcendental"),
        (AMDGCN, "v_ldexp_f32 v0, v1, v2", "vector"),
        (AMDGCN, "v_dual_mul_f32 v0, v1, v2 :: v_dual_add_f32 v3, v4, v5", "vector"),
        (AMDGCN, "s_barrier", "barriers"),
        (AMDGCN, "s_barrier_signal -1", "waits"),
        (AMDGCN, "s_waitcnt vmcnt(0)", "waits"),
        (AMDGCN, "scratch_load_dword v0, off, s32", "scratch"),
        (AMDGCN, "s_load_dwordx8 s[8:15], s[4:5], 0x0", "scalar"),
        (SASS, "MUFU.EX2 R4, R4", "transcendental"),
        (SASS, "FFMA R4, R4, R5, R6", "vector"),
        (SASS, "BAR.SYNC.DEFER_BLOCKING 0x0", "barriers"),
        (SASS, "WARPGROUP.DEPBAR.LE gsb0, 0x0", "waits"),
        (SASS, "UTCBAR [UR10], URZ", "waits"),
        (SASS, "LDL R16, [R1+0x4]", "scratch"),
        (SASS, "ULDC.64 UR4, c[0x0][0x228]", "scalar"),
        (SASS, "LDTM.x64 R4, tmem[UR9]", "other"),
    ],
)
def test_other_instructions(instruction_set: InstructionSet, text: str, field: str) -> None:
    mix = mix_of(instruction_set, text)
    assert getattr(mix, field) == 1
    assert mix.total == 1


@pytest.mark.parametrize(
    ("instruction_set", "opcode", "name"),
    [
        (AMDGCN, "v_cvt_pk_bf16_f32", "v_cvt_pk_bf16_f32"),
        (AMDGCN, "v_cvt_f32_fp8_sdwa", "v_cvt_f32_fp8"),
        (SASS, "F2FP.BF16.E4M3.UNPACK_B", "F2FP.BF16.E4M3.UNPACK_B"),
    ],
)
def test_conversions_are_counted_by_mnemonic(instruction_set: InstructionSet, opcode: str, name: str) -> None:
    assert mix_of(instruction_set, opcode).conversions == {name: 1}


def test_the_hot_loop_is_the_first_innermost_one_with_matrix_instructions() -> None:
    def branch(target: str) -> Instruction:
        return Instruction("s_cbranch_scc1", target, (), target)

    wait_loop = [Instruction("s_sleep", "", ("w",)), branch("w")]
    plain = [Instruction("v_mfma_f32_16x16x32_bf16", "", ("p",)), branch("p")]
    masked = [Instruction("v_cndmask_b32", "", ("m",)), Instruction("v_mfma_f32_16x16x32_bf16"), branch("m")]
    outer = [Instruction("s_nop", "", ("o",)), *plain, *masked, branch("o")]
    loop, loops = hot_loops([*wait_loop, *outer, Instruction("s_endpgm", falls_through=False)], AMDGCN)
    assert loops == (AMDGCN.mix(plain), AMDGCN.mix(masked))
    assert loop == loops[0]


def test_an_unrolled_kernel_is_counted_as_a_whole() -> None:
    program = [Instruction("v_mfma_f32_16x16x32_bf16")] * 3
    assert hot_loops(program, AMDGCN) == (AMDGCN.mix(program), ())


def test_resources_survive_json() -> None:
    mix = InstructionMix({"v_mfma": 4}, 1024, {16: 2, 4: 1}, conversions={"v_cvt": 3}, vector=7)
    resources = Resources(120, 3, 12, 4096, 4, mix, (mix, InstructionMix()), 256)
    assert Resources.from_dict(json.loads(json.dumps(resources.to_dict()))) == resources


def test_a_rule_for_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match="matirx"):
        rules(("matirx", "v_"))
