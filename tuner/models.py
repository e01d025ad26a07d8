"""Real models: the attention shapes of ``models.yaml`` and the families that their deployments lead to."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from .problem import AttentionFamily

SHIPPED = Path(__file__).with_name("models.yaml")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Cache:
    """A KV cache to serve from: its dtype and scales (empty: the dtype's default) with every page size in use."""

    kv_dtype: str
    page_sizes: tuple[int, ...]
    kv_scales: str = ""


@dataclass(frozen=True)
class Attention:
    """One kind of attention layer, unsharded. Field names are those of Hugging Face's ``config.json``."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    caches: tuple[Cache, ...]
    sliding_window: int = 0
    sinks: bool = False

    def families(self, tp: int) -> Iterator[AttentionFamily]:
        """The families on one of ``tp`` GPUs, which share out the heads; KV heads fewer than ``tp`` are replicated.

        Raises:
            ValueError: the heads do not divide over ``tp`` GPUs.
        """
        kv_heads = self.num_key_value_heads
        if tp < 1 or self.num_attention_heads % tp or (kv_heads % tp and tp % kv_heads):
            raise ValueError(f"tp {tp} does not divide {self.num_attention_heads} query heads on {kv_heads} KV heads")
        for cached in self.caches:
            for page_size in cached.page_sizes:
                yield AttentionFamily(
                    num_query_heads=self.num_attention_heads // tp,
                    num_kv_heads=max(kv_heads // tp, 1),
                    head_size=self.head_dim,
                    page_size=page_size,
                    kv_dtype=cached.kv_dtype,
                    kv_scales=cached.kv_scales,
                    sliding_window=self.sliding_window,
                    sinks=self.sinks,
                )


@dataclass(frozen=True)
class Model:
    """A model, the tensor-parallel sizes (GPUs per copy) it is served at, and its kinds of attention layer."""

    name: str
    source: str
    tp: tuple[int, ...]
    attention: tuple[Attention, ...]

    def families(self, tp: int | None = None) -> list[AttentionFamily]:
        """The distinct families of one GPU at a tensor-parallel size, or at all listed sizes for None.

        Raises:
            ValueError: the heads do not divide over ``tp`` GPUs; the message names the model.
        """
        found: dict[AttentionFamily, None] = {}
        for size in self.tp if tp is None else (tp,):
            for attention in self.attention:
                try:
                    found.update(dict.fromkeys(attention.families(size)))
                except ValueError as error:
                    raise ValueError(f"model {self.name}: {error}") from None
        return list(found)


def load_models(path: Path | None = None) -> dict[str, Model]:
    """The models of a YAML file, by default the shipped one, by name in file order.

    Raises:
        ValueError: the file is not YAML, an entry has an unknown, missing or bad field, or two have one name; the
            message names the file, the model and the field.
    """
    return dict(_shipped_models() if path is None else _read(path))


def find_model(name: str) -> Model:
    """The shipped model of a name in any case. Raises ValueError that lists the nearest names."""
    models = {known.lower(): model for known, model in _shipped_models().items()}
    if name.lower() in models:
        return models[name.lower()]
    near = difflib.get_close_matches(name.lower(), models, n=3, cutoff=0.5) or list(models)
    raise ValueError(f"model {name!r} is unknown; nearest: {', '.join(models[key].name for key in near)}")


def all_families() -> list[AttentionFamily]:
    """Every distinct family of the shipped models at their listed sizes, in file order."""
    return list(_labels())


def models_of(family: AttentionFamily) -> list[str]:
    """Which deployments lead to a family, as labels like ``"Llama-3-70B TP8"``; empty when no shipped model does."""
    return list(_labels().get(family, ()))


@cache
def _shipped_models() -> dict[str, Model]:
    return _read(SHIPPED)


@cache
def _labels() -> dict[AttentionFamily, list[str]]:
    labels: dict[AttentionFamily, list[str]] = {}
    for model in _shipped_models().values():
        for tp in model.tp:
            for family in model.families(tp):
                labels.setdefault(family, []).append(f"{model.name} TP{tp}")
    return labels


def _read(path: Path) -> dict[str, Model]:
    try:
        entries = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a YAML file: {error}") from None
    models: dict[str, Model] = {}
    for number, entry in enumerate(_sequence(entries, str(path)), start=1):
        name = entry.get("name") if isinstance(entry, dict) else None
        model = _model(entry, f"{path}: model {name or f'number {number}'}")
        if model.name in models:
            raise ValueError(f"{path}: model {model.name} is listed twice")
        try:
            model.families()
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        models[model.name] = model
    return models


def _model(entry: Any, where: str) -> Model:
    values = _fields(Model, entry, where)
    for name in ("name", "source"):
        if not isinstance(values[name], str):
            raise ValueError(f"{where}: {name} must be text, not {values[name]!r}")
    attention = tuple(_attention(item, where) for item in _sequence(values["attention"], f"{where}: attention"))
    return Model(values["name"], values["source"], _integers(values["tp"], f"{where}: tp"), attention)


def _attention(entry: Any, where: str) -> Attention:
    values = _fields(Attention, entry, f"{where}: attention")
    for name in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        _integers([values[name]], f"{where}: {name}")
    caches = []
    for item in _sequence(values["caches"], f"{where}: caches"):
        cached = _fields(Cache, item, f"{where}: caches")
        caches.append(Cache(**cached | {"page_sizes": _integers(cached["page_sizes"], f"{where}: page_sizes")}))
    return Attention(**values | {"caches": tuple(caches)})


def _fields(record: type, entry: Any, where: str) -> dict[str, Any]:
    """The entry of a record, checked to hold its fields, all required ones, and nothing else."""
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: must be a mapping, not {entry!r}")
    known = {field.name: field.default is MISSING for field in fields(record)}
    for name in entry:
        if name not in known:
            raise ValueError(f"{where}: unknown field {name!r}; known fields: {', '.join(known)}")
    for name, required in known.items():
        if required and name not in entry:
            raise ValueError(f"{where}: field {name!r} is missing")
    return entry


def _sequence(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: must be a list that is not empty, not {value!r}")
    return value


def _integers(value: Any, where: str) -> tuple[int, ...]:
    for item in _sequence(value, where):
        if not isinstance(item, int) or isinstance(item, bool) or item < 1:
            raise ValueError(f"{where}: must be a positive integer, not {item!r}")
    return tuple(value)
