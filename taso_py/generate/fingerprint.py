"""Fingerprints: terms with equal fingerprints agree on sample integers, and most likely always.

Samples are small integers, one in three mostly of one sign: a maximum over nine values of mixed sign is almost never
negative, so that ``relu(max_pool(x)) = max_pool(x)`` would look true. Each variable has a sign of its own there, or
products would be positive: ``relu(max_pool(conv(x, w))) = max_pool(conv(x, w))``. The fingerprint is a random linear
form of all elements of all samples, modulo 2**64 (Freivalds 1977); the shape is part of it.

Of real numbers the leading digits count; rounding may hide that two terms agree, but hardly ever does.

Invariant: fingerprints are a function of values, shape and seed.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from taso_py.ir.sign import Sign, with_sign
from taso_py.ir.types import DType, TensorType
from taso_py.ops.evaluate import Domain, Floats

SAMPLES = 6
_MOSTLY, _MOSTLY_NEGATIVE = 0.93, 0.6
"""Share of the prevailing sign in a sample mostly of one sign, and how often that sign is minus."""
_DIGITS, _EXPONENTS = 2.0**20, 2.0**12
"""Leading digits of a real number that count, and the range of exponents."""
_NEARNESS = 1e-9
"""Greatest relative difference of real numbers that are taken to be equal."""
Keys = NDArray[np.uint64]
USELESS = np.uint64(0)
"""Fingerprint of terms that are zero everywhere, or too large to be exact."""


def generator(seed: int, name: str) -> np.random.Generator:
    """Return a random generator that depends on seed and name only."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def samples(seed: int, name: str, shape: tuple[int, ...], count: int = SAMPLES) -> Floats:
    """Return nonzero integers of shape ``(count, *shape)``; every third sample is mostly of one sign."""
    random = generator(seed, f"{name}{shape}")
    values = random.integers(1, 8, (count, *shape))
    negative = random.random((count, *shape)) < 0.5
    for sample in range(1, count, 3):
        share = _MOSTLY if random.random() < _MOSTLY_NEGATIVE else 1 - _MOSTLY
        negative[sample] = random.random(shape) < share
    return np.where(negative, -values, values).astype(np.float64)


def samples_of(seed: int, name: str, type_: TensorType, count: int = SAMPLES, sign: Sign = Sign.ANY) -> Floats:
    """Return samples of a type and a sign: integers, or of truth values 1 and 0."""
    values = samples(seed, name, type_.sizes, count)
    return (values > 0).astype(np.float64) if type_.dtype is DType.BOOL else with_sign(values, sign)


def agree(one: Floats, other: Floats, domain: Domain) -> bool:
    """Return whether values are equal; real numbers up to rounding."""
    if domain is Domain.EXACT:
        return np.array_equal(one, other)
    return one.shape == other.shape and np.allclose(one, other, rtol=_NEARNESS, atol=_NEARNESS)


class Hasher:
    """Computes fingerprints; caches the coefficients of each shape."""

    def __init__(self, seed: int, domain: Domain = Domain.EXACT) -> None:
        self._seed = seed
        self._domain = domain
        self._coefficients: dict[tuple[int, ...], tuple[Keys, np.uint64]] = {}

    def keys(self, values: Floats) -> Keys:
        """Return one fingerprint for each of the terms whose values are ``values[term, sample, ...]``."""
        flat = values.reshape(len(values), -1)
        coefficients, salt = self._coefficients_for(values.shape[1:])
        useless = ~np.isfinite(flat).all(axis=1) | (flat == 0).all(axis=1)
        numbers = np.where(useless[:, None], 0.0, flat)
        if self._domain is Domain.REAL:
            digits, exponents = np.frexp(numbers)
            # Rounding may reach the next power of two, whose exponent is greater by one.
            digits, exponents = np.frexp(np.ldexp(np.round(digits * _DIGITS), exponents))
            numbers = digits * _DIGITS * _EXPONENTS + exponents
        integers = numbers.astype(np.int64).view(np.uint64)
        keys = (integers * coefficients).sum(axis=1, dtype=np.uint64) + salt
        return np.where(useless, USELESS, keys)

    def _coefficients_for(self, shape: tuple[int, ...]) -> tuple[Keys, np.uint64]:
        if shape not in self._coefficients:
            random = generator(self._seed, f"hash{shape}")
            drawn = random.integers(1 << 63, size=int(np.prod(shape)) + 1, dtype=np.uint64) * np.uint64(2) + np.uint64(
                1
            )
            self._coefficients[shape] = drawn[:-1], drawn[-1]
        return self._coefficients[shape]
