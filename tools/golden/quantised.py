"""Layouts in which quantisation tools publish matrices.

A layout's `store` rounds a matrix [out, in] and returns its tensors by suffix. Its `read` computes the matrix from these tensors by the
definition of the layout and shares nothing with `store`.
"""

import json
from typing import NamedTuple

import numpy as np
import torch

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
AWQ_SHIFTS = (0, 16, 4, 20, 8, 24, 12, 28)


def e4m3_of(code):
    exponent, fraction = code >> 3 & 15, code & 7
    size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -size if code & 128 else size


E4M3 = np.array([e4m3_of(code) for code in range(256)], np.float32)


def tensor(values):
    return torch.from_numpy(np.ascontiguousarray(values))


def floats(stored):
    return stored.float().numpy()


def bytes_of(stored):
    return stored.view(torch.uint8).numpy()


def stream(codes, bits):
    """Each row of codes as a little-endian stream of bits in whole words."""
    ones = (codes[..., None] >> np.arange(bits) & 1).reshape(len(codes), -1)
    packed = np.packbits(ones.astype(np.uint8), axis=1, bitorder="little")
    return np.ascontiguousarray(np.pad(packed, ((0, 0), (0, -packed.shape[1] % 4)))).view(np.int32)


def codes_of(words, bits, n):
    """The first `n` codes of each row of words."""
    rows = [int.from_bytes(np.ascontiguousarray(row).tobytes(), "little") for row in words]
    return np.array([[row >> i * bits & (1 << bits) - 1 for i in range(n)] for row in rows])


def spread(groups, cols):
    """What groups of equal size have, for each column."""
    return np.repeat(groups, cols // groups.shape[1], axis=1)


class Rounded(NamedTuple):
    codes: np.ndarray
    zeros: np.ndarray
    scales: torch.Tensor


def round_to_integers(w, bits, group_of, is_symmetric, dtype):
    top, middle = 2**bits - 1, 2 ** (bits - 1)
    parts = [w[:, group_of == group] for group in range(group_of.max() + 1)]
    low = np.stack([np.minimum(part.min(1), 0) for part in parts], 1)
    high = np.stack([np.maximum(part.max(1), 0) for part in parts], 1)
    size = np.maximum(-low, high) / (middle - 0.5) if is_symmetric else (high - low) / top
    scales = tensor(size.astype(np.float32)).to(dtype)
    exact = floats(scales)
    zeros = np.full(exact.shape, middle) if is_symmetric else np.clip(np.round(-low / exact), 0, top).astype(int)
    codes = np.clip(np.round(w / exact[:, group_of]) + zeros[:, group_of], 0, top).astype(int)
    return Rounded(codes, zeros, scales)


def in_order(cols, group):
    return np.arange(cols) // (group or cols)


class Packed(NamedTuple):
    """`pack-quantized` of compressed-tensors: streams of bits along rows, zero points packed along columns."""

    bits: int
    group: int = 0
    is_symmetric: bool = True

    def store(self, w, _rng):
        rounded = round_to_integers(w, self.bits, in_order(w.shape[1], self.group), self.is_symmetric, torch.bfloat16)
        tensors = {"weight_packed": tensor(stream(rounded.codes, self.bits)), "weight_scale": rounded.scales, "weight_shape": torch.tensor(w.shape)}
        if not self.is_symmetric:
            tensors["weight_zero_point"] = tensor(stream(rounded.zeros.T, self.bits).T)
        return tensors

    def read(self, tensors):
        rows, cols = tensors["weight_shape"].tolist()
        codes = codes_of(tensors["weight_packed"].numpy(), self.bits, cols)
        zeros = np.array([[2 ** (self.bits - 1)]])
        if not self.is_symmetric:
            zeros = codes_of(tensors["weight_zero_point"].numpy().T, self.bits, rows).T
        return (codes - spread(zeros, cols)) * spread(floats(tensors["weight_scale"]), cols)


class SignedBytes(NamedTuple):
    """`int-quantized` of compressed-tensors, with a scale for each row."""

    def store(self, w, _rng):
        rounded = round_to_integers(w, 8, in_order(w.shape[1], 0), True, torch.bfloat16)
        return {"weight": tensor((rounded.codes - 128).astype(np.int8)), "weight_scale": rounded.scales}

    def read(self, tensors):
        return tensors["weight"].numpy() * floats(tensors["weight_scale"])


class Gptq(NamedTuple):
    """GPTQ in its first version, which stores one less than each zero point."""

    bits: int
    group: int
    is_symmetric: bool
    is_reordered: bool = False

    def store(self, w, rng):
        group_of = in_order(w.shape[1], self.group)
        if self.is_reordered:
            group_of = rng.permutation(group_of)
        rounded = round_to_integers(w, self.bits, group_of, self.is_symmetric, torch.float16)
        stored_zeros = (rounded.zeros - 1) % 2**self.bits
        return {
            "qweight": tensor(stream(rounded.codes, self.bits).T), "qzeros": tensor(stream(stored_zeros.T, self.bits)),
            "scales": rounded.scales.T.contiguous(), "g_idx": tensor(group_of.astype(np.int32))}

    def read(self, tensors):
        group_of, scales = tensors["g_idx"].numpy(), floats(tensors["scales"])
        codes = codes_of(tensors["qweight"].numpy().T, self.bits, len(group_of))
        zeros = (codes_of(tensors["qzeros"].numpy(), self.bits, scales.shape[1]) + 1) % 2**self.bits
        return (codes - zeros.T[:, group_of]) * scales.T[:, group_of]


class Awq(NamedTuple):
    """AWQ's GEMM layout: eight outputs of one input in a word."""

    group: int

    @staticmethod
    def words(codes):
        eights = codes.reshape(len(codes), -1, 8).astype(np.uint32)
        return sum(eights[..., j] << shift for j, shift in enumerate(AWQ_SHIFTS)).astype(np.uint32).view(np.int32)

    def store(self, w, _rng):
        rounded = round_to_integers(w, 4, in_order(w.shape[1], self.group), False, torch.float16)
        return {
            "qweight": tensor(self.words(rounded.codes.T)), "qzeros": tensor(self.words(rounded.zeros.T)), "scales": rounded.scales.T.contiguous()}

    def read(self, tensors):
        def codes(words):
            nibbles = codes_of(words.numpy(), 4, 8 * words.shape[1]).reshape(len(words), -1, 8)
            return np.stack([nibbles[..., shift // 4] for shift in AWQ_SHIFTS], -1).reshape(len(words), -1)

        scales = floats(tensors["scales"])
        values = [(codes(tensors["qweight"])[i] - codes(tensors["qzeros"])[i // self.group]) * scales[i // self.group] for i in range(len(tensors["qweight"]))]
        return np.stack(values, 1)


class Mlx(NamedTuple):
    """MLX's affine integers: streams of bits along rows, a scale and a bias for each group."""

    bits: int
    group: int = 64

    def store(self, w, _rng):
        parts = w.reshape(len(w), -1, self.group)
        low, high = parts.min(-1), parts.max(-1)
        scales = tensor((high - low) / (2**self.bits - 1)).to(torch.bfloat16)
        biases = tensor(low).to(torch.bfloat16)
        exact = (parts - floats(biases)[..., None]) / floats(scales)[..., None]
        codes = np.clip(np.round(exact), 0, 2**self.bits - 1).astype(int).reshape(w.shape)
        words = tensor(stream(codes, self.bits).view(np.uint32))
        return {"weight": words, "scales": scales, "biases": biases}

    def read(self, tensors):
        cols = tensors["scales"].shape[1] * self.group
        codes = codes_of(tensors["weight"].view(torch.int32).numpy(), self.bits, cols)
        return codes * spread(floats(tensors["scales"]), cols) + spread(floats(tensors["biases"]), cols)


class Fp8(NamedTuple):
    """E4M3 with a scale of the whole matrix, of each row, or of each block."""

    block: tuple = ()
    """Rows and columns of a block; a length of 0 is that of the matrix."""
    dtype: torch.dtype = torch.float32
    more: dict = {}
    scale: str = "weight_scale"

    def sides(self, shape):
        rows, cols = self.block or (0, 0)
        return rows or shape[0], cols or shape[1]

    def store(self, w, _rng):
        matrix = w.reshape(len(w), -1)
        rows, cols = self.sides(matrix.shape)
        starts = [range(0, matrix.shape[0], rows), range(0, matrix.shape[1], cols)]
        largest = [[np.abs(matrix[i : i + rows, j : j + cols]).max() for j in starts[1]] for i in starts[0]]
        scales = tensor(np.array(largest, np.float32) / 440).to(self.dtype)
        scaled = np.stack([row / np.repeat(floats(scales)[i // rows], cols)[: len(row)] for i, row in enumerate(matrix)])
        codes = tensor(scaled.reshape(w.shape)).to(torch.float8_e4m3fn)
        return {"weight": codes, self.scale: scales if self.block else scales.reshape(()), **self.more}

    def read(self, tensors):
        elements = E4M3[bytes_of(tensors["weight"])]
        matrix = elements.reshape(len(elements), -1)
        rows, cols = self.sides(matrix.shape)
        scales = np.atleast_2d(floats(tensors[self.scale]))
        grown = np.kron(scales, np.ones((rows, cols), np.float32))[: matrix.shape[0], : matrix.shape[1]]
        return (matrix * grown).reshape(elements.shape)


def nearest_fp4(scaled):
    codes = np.abs(scaled[..., None] - FP4).argmin(-1)
    return tensor((codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8))


def elements_of_fp4(packed):
    return FP4[np.stack([packed.numpy() & 15, packed.numpy() >> 4], -1).reshape(len(packed), -1)]


class Nvfp4(NamedTuple):
    """Floats of four bits, an E4M3 scale for 16 of them, and one of the whole matrix: a factor of ModelOpt, a divisor of compressed-tensors."""

    is_divisor: bool
    more: dict = {}

    def store(self, w, _rng):
        whole = np.float32(np.abs(w).max() / (6 * 448))
        blocks = np.abs(w).reshape(len(w), -1, 16).max(-1) / (6 * whole)
        scales = tensor(np.maximum(blocks, 2.0**-9)).to(torch.float8_e4m3fn)
        elements = nearest_fp4(w / spread(floats(scales) * whole, w.shape[1]))
        if self.is_divisor:
            return {"weight_packed": elements, "weight_scale": scales, "weight_global_scale": torch.tensor([1 / whole]), **self.more}
        return {"weight": elements, "weight_scale": scales, "weight_scale_2": torch.tensor(whole), **self.more}

    def read(self, tensors):
        elements = elements_of_fp4(tensors["weight_packed" if self.is_divisor else "weight"])
        whole = 1 / floats(tensors["weight_global_scale"]) if self.is_divisor else floats(tensors["weight_scale_2"])
        return elements * spread(E4M3[bytes_of(tensors["weight_scale"])] * whole, elements.shape[1])


class Mxfp4(NamedTuple):
    """`mxfp4-pack-quantized` of compressed-tensors: an exponent for 32 floats of four bits."""

    def store(self, w, _rng):
        exponents = np.floor(np.log2(np.abs(w).reshape(len(w), -1, 32).max(-1))).astype(int) - 2
        elements = nearest_fp4(w / spread(2.0**exponents, w.shape[1]))
        return {"weight_packed": elements, "weight_scale": tensor((exponents + 127).astype(np.uint8))}

    def read(self, tensors):
        elements = elements_of_fp4(tensors["weight_packed"])
        return elements * spread(2.0 ** (tensors["weight_scale"].numpy().astype(int) - 127), elements.shape[1])


class Nf4(NamedTuple):
    """NF4 as bitsandbytes stores it, with scales of blocks in F32 or in codes of eight bits."""

    is_nested: bool
    block: int = 64

    def store(self, w, _rng):
        from bitsandbytes import functional as bnb

        codes, state = bnb.quantize_4bit(torch.from_numpy(w), blocksize=self.block, compress_statistics=self.is_nested, quant_type="nf4")
        tensors = {"weight": codes, **{f"weight.{name}": part for name, part in state.as_dict(packed=True).items()}}
        assert np.array_equal(self.read(tensors), bnb.dequantize_4bit(codes, state).numpy())
        return tensors

    def read(self, tensors):
        state = json.loads(bytes(tensors["weight.quant_state.bitsandbytes__nf4"].tolist()))
        scales = tensors["weight.absmax"].numpy()
        if self.is_nested:
            of_codes = np.repeat(tensors["weight.nested_absmax"].numpy(), state["nested_blocksize"])[: len(scales)]
            scales = tensors["weight.nested_quant_map"].numpy()[scales] * of_codes + np.float32(state["nested_offset"])
        codes = tensors["weight"].numpy()[:, 0]
        levels = tensors["weight.quant_map"].numpy()[np.stack([codes >> 4, codes & 15], -1).ravel()]
        return (levels * np.repeat(scales, self.block)).reshape(state["shape"])
