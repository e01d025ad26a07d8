from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attn_tune.device import LocalDevice, local_amd_device
from attn_tune.device_nvidia import nvidia_device

CPU = "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n"
VISIBILITY = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def gpu(version: int, units: int, simd_per_cu: int = 4, unique_id: int = 0, location_id: int = 0) -> str:
    """The lines of a KFD properties file that matter, among others."""
    return (
        f"cpu_cores_count 0\nsimd_count {units * simd_per_cu}\nmem_banks_count 1\nsimd_per_cu {simd_per_cu}\n"
        f"gfx_target_version {version}\nlocation_id {location_id}\ndomain 0\nunique_id {unique_id}\n"
    )


def write_nodes(sysfs: Path, *nodes: str) -> Path:
    for number, text in enumerate(nodes):
        node = sysfs / f"class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(text)
    return sysfs


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VISIBILITY:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("version", "arch"),
    [(90500, "gfx950"), (90402, "gfx942"), (90010, "gfx90a"), (120500, "gfx1250"), (110000, "gfx1100")],
)
def test_the_version_number_is_the_arch(tmp_path: Path, version: int, arch: str) -> None:
    write_nodes(tmp_path, CPU, gpu(version, 256))
    assert local_amd_device(0, tmp_path) == LocalDevice(arch, 256, arch)


def test_units_are_simds_over_simds_per_unit(tmp_path: Path) -> None:
    write_nodes(tmp_path, gpu(110000, 96, simd_per_cu=2))
    device = local_amd_device(0, tmp_path)
    assert device is not None
    assert device.compute_units == 96


def test_name_and_partition_come_from_the_pci_device(tmp_path: Path) -> None:
    # Bus 0x75, and the number of a partition above bit 16.
    write_nodes(tmp_path, gpu(90500, 32, location_id=0x7500 | 3 << 28))
    pci = tmp_path / "bus/pci/devices/0000:75:00.0"
    pci.mkdir(parents=True)
    (pci / "product_name").write_text("AMD Instinct MI355X\n")
    (pci / "current_compute_partition").write_text("CPX\n")
    assert local_amd_device(0, tmp_path) == LocalDevice("gfx950", 32, "AMD Instinct MI355X", "CPX")


def test_nodes_are_counted_as_numbers(tmp_path: Path) -> None:
    write_nodes(tmp_path, *[CPU] * 2, *[gpu(90402, 304)] * 8, gpu(90500, 256))  # "10" sorts before "2" as text
    assert local_amd_device(8, tmp_path) == LocalDevice("gfx950", 256, "gfx950")


@pytest.mark.parametrize(
    ("environment", "index", "units"),
    [
        ({}, 0, 1),
        ({}, 2, 3),
        ({}, 3, None),
        ({"HIP_VISIBLE_DEVICES": "2"}, 0, 3),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, 1, 1),
        ({"HIP_VISIBLE_DEVICES": ""}, 0, 1),
        ({"HIP_VISIBLE_DEVICES": "-1"}, 0, None),
        ({"HIP_VISIBLE_DEVICES": "0,7,1"}, 1, None),  # the list ends at its first bad entry
        ({"CUDA_VISIBLE_DEVICES": "1"}, 0, 2),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "2"}, 0, 3),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, 0, 2),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, 0, 3),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "2"}, 0, None),
        ({"ROCR_VISIBLE_DEVICES": ""}, 0, None),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000ac"}, 0, 3),
    ],
)
def test_visible_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], index: int, units: int | None
) -> None:
    nodes = [gpu(90500, number + 1, unique_id=0xAA + number) for number in range(3)]
    write_nodes(tmp_path, CPU, *nodes)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    device = local_amd_device(index, tmp_path)
    assert (device.compute_units if device else None) == units


@pytest.mark.parametrize("text", ["", "simd_count\n", "gfx_target_version 90500\nsimd_count many\n"])
def test_nodes_that_cannot_be_read_are_passed_over(tmp_path: Path, text: str) -> None:
    write_nodes(tmp_path, text)
    assert local_amd_device(0, tmp_path) is None


def test_no_driver_is_no_device(tmp_path: Path) -> None:
    assert local_amd_device(0, tmp_path) is None
    assert nvidia_device(0, str(tmp_path / "libcuda.so.1")) is None


# A driver of two devices that, as the real one, answers only after cuInit.
_DRIVER = """
#include <string.h>
static int ready = 0;
int cuInit(unsigned flags) { ready = 1; return 0; }
int cuDeviceGetCount(int *count) { if (!ready) return 3; *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { if (!ready || index > 1) return 101; *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "NVIDIA H200", size); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 9 : attribute == 76 ? device : attribute == 16 ? 132 : -1;
    return 0;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build a stand-in for libcuda")
    directory = tmp_path_factory.mktemp("driver")
    (directory / "driver.c").write_text(_DRIVER)
    library = directory / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, directory / "driver.c"], check=True)
    return str(library)


@pytest.mark.parametrize(
    ("index", "expected"), [(0, ("sm_90", 132, "NVIDIA H200")), (1, ("sm_91", 132, "NVIDIA H200"))]
)
def test_the_nvidia_driver_is_asked(driver: str, index: int, expected: tuple[str, int, str]) -> None:
    assert nvidia_device(index, driver) == expected


def test_an_nvidia_device_that_does_not_exist(driver: str) -> None:
    assert nvidia_device(2, driver) is None


def test_asking_does_not_initialise_the_driver_here(driver: str) -> None:
    import ctypes

    nvidia_device(0, driver)
    assert ctypes.CDLL(driver).cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 3


def test_a_library_that_is_no_driver(tmp_path: Path) -> None:
    library = tmp_path / "libcuda.so.1"
    library.write_text("not an ELF file")
    assert nvidia_device(0, str(library)) is None


def test_neither_torch_nor_triton_is_loaded() -> None:
    code = (
        "import sys; from attn_tune.device import local_device; device = local_device(); "
        "assert device is local_device(); sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
