"""Writes GGUF files, as llama.cpp's converter does from a Hugging Face directory."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGML_QUANT_VERSION, GGMLQuantizationType, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import quant_shape_to_byte_shape, quantize
from torch import Tensor

from lmtool.errors import UsageError
from lmtool.interop.references import USE_DIRECTORY_FIX
from lmtool.printable import printable
from lmtool.storage import durable

ROPE_DIVISORS_TENSOR = "rope_freqs.weight"
"""Divisors of the rotary frequencies, one for each pair of a head: a tensor that counts as a key of the file."""
POSITION_TENSOR = "position_embd.weight"
Quantization = Literal["f16", "q8_0", "q4_0", "q4_1"]
_TYPES = {name: GGMLQuantizationType[name.upper()] for name in get_args(Quantization)}
_FILE_TYPES = {name: LlamaFileType[f"MOSTLY_{name.upper()}"] for name in get_args(Quantization)}
_VALUE_TYPES: Mapping[type, GGUFValueType] = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    str: GGUFValueType.STRING,
    list: GGUFValueType.ARRAY,
}
"""Types as llama.cpp has them: numbers of 32 bits, and sizes without a sign."""
_MAX_FLOAT16 = 65504
_MAX_QUANTIZED = {GGMLQuantizationType.Q8_0: 127, GGMLQuantizationType.Q4_0: 8}
"""The largest multiple of the 16-bit scale that quantized values have."""


def inexpressible_error(key: str, value_description: str) -> UsageError:
    """An error about a tensor, or a key of a tokenizer.json, that no GGUF file has."""
    return UsageError(
        f"GGUF cannot express this model: {key} is {printable(value_description)[:160]}",
        where=key,
        fix=USE_DIRECTORY_FIX,
    )


def write_gguf(
    path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, Tensor], quantization: Quantization
) -> None:
    """Writes a model as llama.cpp's converter does, and replaces `path` when the new file is on disk.

    values: by their keys; arrays become tensors. tensors: by their names in the file. quantization: of matrices;
    vectors and learned positions are float32, and rows of no whole blocks are F16. Raises UsageError for what GGUF
    cannot express, and OSError.
    """
    writer = GGUFWriter(None, architecture)
    writer.add_type("model")
    writer.add_name(printable(path.stem))
    writer.add_file_type(_FILE_TYPES[quantization])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    for key, value in values.items():
        if type(value) is int and value >= 1 << 31:
            raise inexpressible_error(key, str(value))
        if not isinstance(value, np.ndarray) and value not in ("", []):
            writer.add_key_value(key, value, _VALUE_TYPES[type(value)])
    arrays = {key: torch.from_numpy(value) for key, value in values.items() if isinstance(value, np.ndarray)}
    all_tensors = {**tensors, **arrays}
    # each bias behind its matrix
    stems = list(dict.fromkeys(name.rpartition(".")[0] for name in all_tensors))
    names = sorted(all_tensors, key=lambda name: stems.index(name.rpartition(".")[0]))
    matrix_type = _TYPES[quantization]
    tensor_types = {}
    for name in names:
        shape = all_tensors[name].shape
        if len(shape) < 2 or name == POSITION_TENSOR:
            tensor_type = GGMLQuantizationType.F32
        elif shape[-1] % GGML_QUANT_SIZES[matrix_type][0]:
            tensor_type = GGMLQuantizationType.F16
        else:
            tensor_type = matrix_type
        tensor_types[name] = tensor_type
        byte_shape = quant_shape_to_byte_shape(shape, tensor_type)
        writer.add_tensor_info(name, byte_shape, np.dtype(np.uint8), math.prod(byte_shape), tensor_type)
    with durable.atomic_output(path) as new:
        try:
            writer.write_header_to_file(new)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for name, tensor_type in tensor_types.items():
                stored = all_tensors[name].detach().cpu().float().contiguous()
                largest: float = _MAX_FLOAT16 * _MAX_QUANTIZED.get(tensor_type, 1)
                if tensor_type == GGMLQuantizationType.F32:
                    largest = math.inf
                if not stored.abs().max() <= largest:
                    raise inexpressible_error(name, f"too large for {tensor_type.name}, or not a number")
                writer.write_tensor_data(quantize(stored.numpy(), tensor_type))
        finally:
            writer.close()
