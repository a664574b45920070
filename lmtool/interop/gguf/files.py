"""Write GGUF files, as llama.cpp's converter does from a Hugging Face directory."""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from gguf import GGML_QUANT_SIZES, GGML_QUANT_VERSION, GGMLQuantizationType, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import quant_shape_to_byte_shape, quantize
from torch import Tensor

from lmtool import durable
from lmtool.interop.gguf.architectures import POSITIONS, TensorPair
from lmtool.interop.gguf.configs import express, inexpressible
from lmtool.interop.gguf.vocabulary import express_tokenizer
from lmtool.interop.names import NOTE
from lmtool.printable import plain

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
_HALF = 65504
_LARGEST = {
    GGMLQuantizationType.F32: math.inf,
    GGMLQuantizationType.F16: _HALF,
    GGMLQuantizationType.Q8_0: _HALF * 127,
    GGMLQuantizationType.Q4_0: _HALF * 8,
    GGMLQuantizationType.Q4_1: _HALF,
}
"""Value that each type can hold; quantized ones have a 16-bit scale, and Q4_1 a minimum."""


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Callable[[], Tensor]],
    tokenizer_json: str,
    tokenizer_config: Mapping[str, Any],
    quantization: Quantization,
) -> None:
    """Write a model as llama.cpp's converter does, and replace `path` when it is on disk.

    config, tokenizer_config, tokenizer_json: as a directory has them. tensors: by their names in Transformers, each is
    made once, and one at a time. quantization: of matrices; vectors and learned positions are float32, and rows of no
    whole blocks are F16. Raises UsageError naming what GGUF cannot express, and OSError.
    """
    expressed = express({key: value for key, value in config.items() if key != NOTE})
    eos = config.get("eos_token_id")
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    vocabulary = express_tokenizer(tokenizer_json, tokenizer_config, expressed.architecture, config["vocab_size"], ends)
    writer = GGUFWriter(None, expressed.architecture)
    writer.add_type("model")
    writer.add_name(plain(path.stem))
    writer.add_file_type(_FILE_TYPES[quantization])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    note = {NOTE: json.dumps(config[NOTE], ensure_ascii=False)} if NOTE in config else {}
    for key, value in (expressed.values | vocabulary | note).items():
        if value not in ("", []):
            writer.add_key_value(key, value, _VALUE_TYPES[type(value)])
    kinds = {pair: _kind(pair, _TYPES[quantization]) for pair in expressed.pairs}
    for pair, kind in kinds.items():
        shape = quant_shape_to_byte_shape(pair.shape, kind)
        writer.add_tensor_info(pair.stored, shape, np.dtype(np.uint8), math.prod(shape), kind)
    with durable.staged(path) as new:
        try:
            writer.write_header_to_file(new)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for pair, kind in kinds.items():
                computed = expressed.computed.get(pair.published)
                tensor = tensors[pair.published]() if computed is None else computed
                writer.write_tensor_data(_encoded(pair, tensor, kind))
        finally:
            writer.close()
        with new.open("rb+") as file:
            os.fsync(file.fileno())


def _kind(pair: TensorPair, matrices: GGMLQuantizationType) -> GGMLQuantizationType:
    """Vectors and learned positions stay as exact as they are, and rows that are no whole blocks half as exact."""
    if len(pair.shape) < 2 or pair.stored == POSITIONS:
        return GGMLQuantizationType.F32
    return matrices if pair.shape[-1] % GGML_QUANT_SIZES[matrices][0] == 0 else GGMLQuantizationType.F16


def _encoded(pair: TensorPair, tensor: Tensor, kind: GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """A tensor of Transformers as it lies in a file. Raises UsageError when it is of another shape, or too large."""
    if tuple(tensor.shape) != pair.published_shape:
        raise inexpressible(pair.published, f"of shape {tuple(tensor.shape)}, not {pair.published_shape}")
    stored = pair.layout.join([tensor.detach().cpu().float()]).contiguous()
    if not stored.abs().max() <= _LARGEST[kind]:
        raise inexpressible(pair.published, f"too large for {kind.name}, or not a number")
    return quantize(stored.numpy(), kind)
