"""Compares exported GGUF files in llama.cpp with the run that they come from.

    python check.py PROGRAMS

PROGRAMS is the folder of syncer-server and native-learner. It needs the packages of requirements.txt. Each case trains a run for some seconds and
exports it. llama.cpp must read texts as the same tokens as the run's tokenizer. Files in f32 must continue each prompt greedily with the text of
`syncer-server sample`; for the other types, the share of equal texts and the mean length of equal beginnings are printed.
"""

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import gguf
import xllamacpp
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[3]
PROMPTS = ["The ", "It is a truth ", "her sister", "Mr. Bennet was 23", "\n\nChapter", "“Oh!” — ", "x"]
TEXTS = ["Zwölf Boxkämpfer jagen\r\n\t 🥊 <s> ▁ĠĊ", "it's  the   7th, 1234567 times!\n\n  end ", "日本語 don't <|end|>ÿ", "a"]
TOKENS = 40
TYPES = ["f32", "f16", "bf16", "q8_0"]
TINY = ["--preset", "tiny", "--context", "128", "--data", "builtin:austen", "--total-tokens", "200000", "--stop-at-tokens", "200000"]
# A run may begin with the f32 folder of an earlier case, by the name after --init.
CASES = {
    "bytes": [*TINY],
    "bpe": [*TINY, "--vocab", "600"],
    "experts": [*TINY, "--vocab", "300", "--experts", "4"],
    "imported": ["--preset", "tiny", "--init", str(ROOT / "tests/golden/init/model"), "--data", "builtin:austen", "--stop-at-tokens", "4000"],
    "continued": [*TINY, "--init", "bpe"],
    "adapters": [*TINY, "--init", "bpe", "--lora-rank", "4", "--lr", "0.01"],
}


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout


def train(programs, folder, flags):
    """Trains a run in `folder` until it is complete."""
    serve = [programs / "syncer-server", "serve", "--dir", folder, "--listen", "127.0.0.1:0", "--json", "--exit-when-finished", *flags]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as syncer:
        line = syncer.stdout.readline()
        if not line:
            sys.exit(f"the syncer did not start: {flags}")
        address = json.loads(line)["address"].rsplit("/", 1)[-1]
        learner = subprocess.Popen([programs / "native-learner", "join", f"ws://{address}", "--engine", "cpu"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        syncer.stdout.read()
        learner.wait(60)
    if syncer.returncode:
        sys.exit(f"the syncer ended with {syncer.returncode}: {flags}")


class Model:
    """Model in llama.cpp, behind a server of this process."""

    def __init__(self, path, context):
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.warmup, params.port = context, 1, False, 0
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.n_gpu_layers, params.fit_params, params.verbosity = 0, False, -1
        self.server = xllamacpp.Server(params)

    def ask(self, route, body):
        request = urllib.request.Request(f"{self.server.listening_address}/{route}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})  # fmt: skip
        return json.load(urllib.request.urlopen(request, timeout=120))

    def tokens(self, text):
        return self.ask("tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]

    def continuation(self, text, tokens):
        body = {"prompt": self.tokens(text), "n_predict": tokens, "temperature": 0, "cache_prompt": False}
        return self.ask("completion", body)["content"]


def common(left, right):
    """Returns the number of characters with which both texts begin."""
    return next((at for at, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))


def check(programs, place, name):
    folder, out = place / name, place / f"{name}-gguf"
    syncer = programs / "syncer-server"
    run(syncer, "export", folder, "--out", place / f"{name}-hf", "--merged" if name == "adapters" else "--overwrite")
    tokenizer = Tokenizer.from_file(str(place / f"{name}-hf" / "tokenizer.json"))
    config = json.loads((place / f"{name}-hf" / "config.json").read_text())
    tokens = min(TOKENS, config["max_position_embeddings"] - 20)
    prompts = [prompt for prompt in PROMPTS if len(tokenizer.encode(prompt).ids) < 20]
    sampled = [run(syncer, "sample", folder, "--prompt", prompt, "--temperature", "0", "--tokens", str(tokens), "--json") for prompt in prompts]
    sampled = [json.loads(line)["text"] for line in sampled]
    for kind in TYPES:
        run(syncer, "export", folder, "--out", out, "--format", "gguf", "--dtype", kind)
        path = out / "model.gguf"
        found = gguf.GGUFReader(path)
        model = Model(path, config["max_position_embeddings"])
        for text in [*TEXTS, *PROMPTS]:
            expected = tokenizer.encode(text, add_special_tokens=False).ids
            if model.tokens(text) != expected:
                sys.exit(f"{name}: llama.cpp reads {text!r} as {model.tokens(text)}, and the run as {expected}")
        written = [model.continuation(prompt, tokens) for prompt in prompts]
        equal = sum(left == right for left, right in zip(sampled, written))
        share = sum(common(*pair) for pair in zip(sampled, written)) / max(1, sum(map(len, sampled)))
        size = path.stat().st_size
        print(f"{name} {kind}: {len(found.tensors)} tensors, {size} bytes, {equal} of {len(prompts)} texts equal, {share:.1%} of their letters")
        if kind == "f32" and equal < len(prompts):
            for prompt, left, right in zip(prompts, sampled, written):
                print(f"  {prompt!r}\n    run       {left!r}\n    llama.cpp {right!r}")
            sys.exit(f"{name}: llama.cpp continues a prompt differently")


def main(programs):
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        for name, flags in CASES.items():
            train(programs, place / name, [str(place / f"{flag}-hf") if flag in CASES else flag for flag in flags])
            check(programs, place, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
