"""Importing a published model: seconds, and memory beside the bytes of its weights.

A model of SmolLM2's size (135M parameters, random weights) is written as Transformers does, in bfloat16 and in float32,
and imported in a process of its own; beside it Transformers loads the same files.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 3
SHAPE = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

MEASURE = """
import json, resource, sys, threading, time
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

{imports}
before = anonymous()
most, done = [0], threading.Event()

def watch():
    while not done.wait(0.002):
        most[0] = max(most[0], anonymous())

threading.Thread(target=watch, daemon=True).start()
began = time.perf_counter()
{work}
seconds = time.perf_counter() - began
done.set()
print(json.dumps([seconds, (most[0] - before) / 1e6]))
"""
OURS = (
    "from lmtool.interop.importing import import_run",
    "import_run(sys.argv[1], Path(sys.argv[2]), lambda *_: None)",
)
THEIRS = (
    "import torch, transformers",
    "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)",
)


def main() -> None:
    """Print medians over alternating rounds."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    with tempfile.TemporaryDirectory() as scratch:
        inner = Tokenizer(models.BPE({"<|end|>": 0, "a": 1}, []))
        inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
        n = sum(parameter.numel() for parameter in model.parameters())
        for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
            folder = Path(scratch) / name
            model.to(dtype).save_pretrained(folder)
            transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>").save_pretrained(folder)
            found: dict[str, list[list[float]]] = {"lmtool import": [], "Transformers, load": []}
            for number in range(ROUNDS):
                for title, (imports, work) in zip(found, (OURS, THEIRS), strict=True):
                    code = MEASURE.replace("{imports}", imports).replace("{work}", work)
                    target = str(Path(scratch) / f"run-{name}-{number}")
                    done = subprocess.run(
                        [sys.executable, "-c", code, str(folder), target], capture_output=True, text=True, check=True
                    )
                    found[title].append(json.loads(done.stdout.splitlines()[-1]))
            for title, rounds in found.items():
                seconds, megabytes = (statistics.median(values) for values in zip(*rounds, strict=True))
                share = megabytes / (4 * n / 1e6)
                print(
                    f"{name:8}  {title:18}  {seconds:5.2f} s  {megabytes:6.0f} MB = {share:.2f} of the float32 weights"
                )


if __name__ == "__main__":
    main()
