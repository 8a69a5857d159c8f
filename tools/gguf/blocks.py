#!/usr/bin/env python3
"""Writes blocks of every weight type of ggml and what a decoder that is not ours makes of them, as the
golden file of moeflux-core; and the codebooks of the types that have them.

Needs numpy and gguf from PyPI (ggml's own Python package). It lacks Q1_0 and Q2_0, whose decoders are
written out here from their layouts.

    blocks.py goldens FILE       for each type: name, blocks and elements
    blocks.py codebooks FILE     the levels of all entries, 16 bits each
"""

import struct
import sys

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

N_BLOCKS = 3
TYPES = (
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S "
    "IQ4_XS IQ1_M TQ1_0 TQ2_0 MXFP4 NVFP4 Q1_0 Q2_0"
).split()
# Columns and bytes of a block of the types that the package lacks.
MORE = {"Q1_0": (128, 18), "Q2_0": (64, 18)}


def decode(name, blocks):
    if name not in MORE:
        return quants.dequantize(blocks.reshape(-1), getattr(Type, name)).astype(np.float32)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    packed = blocks[:, 2:]
    if name == "Q1_0":
        codes = np.unpackbits(packed, axis=1, bitorder="little").astype(np.float32) * 2 - 1
    else:
        codes = np.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
        codes = codes.reshape(len(blocks), -1).astype(np.float32) - 1
    return (scale * codes).reshape(-1)


def block_bytes(name):
    return MORE[name][1] if name in MORE else quants.GGML_QUANT_SIZES[getattr(Type, name)][1]


def goldens(path):
    random = np.random.default_rng(7)
    with open(path, "wb") as file:
        for name in TYPES:
            n, found = block_bytes(name), []
            while len(found) < N_BLOCKS:
                block = random.integers(0, 256, (1, n), dtype=np.uint8)
                with np.errstate(all="ignore"):
                    if np.isfinite(decode(name, block)).all():
                        found.append(block)
            blocks = np.concatenate(found)
            elements = decode(name, blocks)
            file.write(struct.pack("<8sII", name.encode(), blocks.size, elements.size))
            file.write(blocks.tobytes() + elements.astype("<f4").tobytes())


def codebooks(path):
    books = [
        ("IQ2_XXS", [8, 25, 43]),
        ("IQ2_XS", [8, 25, 43]),
        ("IQ2_S", [8, 25, 43]),
        ("IQ3_XXS", [4, 12, 20, 28, 36, 44, 52, 62]),
        ("IQ3_S", [1, 3, 5, 7, 9, 11, 13, 15]),
        ("IQ1_S", [-1, 0, 1]),
    ]
    with open(path, "wb") as file:
        for name, levels in books:
            decoder = quants._type_traits[getattr(Type, name)]
            decoder.init_grid()
            grid = decoder.grid.reshape(-1, decoder.grid.shape[-1])
            bits = 2 if len(levels) == 3 else 3
            for entry in grid:
                numbers = [levels.index(int(level)) for level in entry]
                word = sum(number << (bits * col) for col, number in enumerate(numbers))
                file.write(struct.pack("<H", word))


if __name__ == "__main__":
    {"goldens": goldens, "codebooks": codebooks}[sys.argv[1]](sys.argv[2])
