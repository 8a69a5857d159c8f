"""Random blocks of every weight type with a wanted standard deviation."""

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants

import blocks

# Where blocks have scales of 16 bits; and offsets as multiples of them, with their places, for the types whose codes are not
# centred.
SCALES = {
    **dict.fromkeys("Q4_0 Q5_0 Q8_0 IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ4_XS IQ4_NL Q1_0 Q2_0".split(), 0),
    **dict.fromkeys("Q4_1 Q5_1 Q4_K Q5_K".split(), 0),
    "Q2_K": 80,
    "Q3_K": 108,
    "Q6_K": 208,
    "TQ1_0": 52,
    "TQ2_0": 64,
}
OFFSETS = {"Q4_1": (2, -7.5), "Q5_1": (2, -15.5), "Q2_K": (82, 1.5), "Q4_K": (2, 7.5), "Q5_K": (2, 15.5)}
IDS = {"F32": 0, "F16": 1, "BF16": 30, "Q1_0": 41, "Q2_0": 42}
PLAIN = ("F32", "F16", "BF16")


def type_id(name):
    return IDS[name] if name in IDS else int(getattr(Type, name))


def block_cols(name):
    if name in PLAIN:
        return 1
    return blocks.MORE[name][0] if name in blocks.MORE else quants.GGML_QUANT_SIZES[getattr(Type, name)][0]


def make(rng, name, shape, std):
    """(the bytes of a tensor, what a decoder that is not ours makes of them)"""
    if name in PLAIN:
        values = (rng.standard_normal(shape) * std).astype(np.float32)
        return plain(name, values)
    n_blocks = int(np.prod(shape)) // block_cols(name)
    raw = rng.integers(0, 256, (n_blocks, blocks.block_bytes(name)), dtype=np.uint8)
    wobble = rng.uniform(0.75, 1.25, n_blocks)
    factor = np.float64(std)
    # The second round corrects what a spread of one scale has come out as.
    for _ in range(2):
        scaled = with_scales(name, raw, factor * wobble)
        values = blocks.decode(name, scaled)
        factor *= std / float(values.std())
    return scaled.tobytes(), values.reshape(shape)


def plain(name, values):
    """Stored values of the types without blocks, and what they are."""
    if name == "F32":
        return values.astype("<f4").tobytes(), values
    if name == "F16":
        stored = values.astype("<f2")
        return stored.tobytes(), stored.astype(np.float32)
    stored = (values.view(np.uint32) >> 16).astype("<u2")
    return stored.tobytes(), (stored.astype(np.uint32) << 16).view(np.float32)


def with_scales(name, raw, scales):
    out = raw.copy()
    if name == "MXFP4":
        # Powers of two, and codes of a deviation of 6.
        out[:, 0] = np.clip(np.round(np.log2(scales / 6)) + 128, 2, 250)
    elif name == "NVFP4":
        # Halved numbers of 8 bits, a quarter octave a step and more.
        exponent = np.clip(np.round(np.log2(scales / 3)) + 7, 1, 14).astype(np.uint8)
        out[:, :4] = exponent[:, None] << 3 | (raw[:, :4] & 7)
    elif name == "IQ1_M":
        # The scale's four digits are the tops of four words.
        words = out[:, 48:56].copy().view("<u2")
        bits = scales.astype("<f2").view("<u2")
        for nth in range(4):
            words[:, nth] = words[:, nth] & 0xFFF | (bits >> 4 * nth & 15) << 12
        out[:, 48:56] = words.view(np.uint8).reshape(-1, 8)
    else:
        put(out, SCALES[name], scales)
        if name in OFFSETS:
            place, factor = OFFSETS[name]
            put(out, place, scales * factor)
    return out


def put(out, place, numbers):
    out[:, place : place + 2] = numbers.astype("<f2").view(np.uint8).reshape(-1, 2)
