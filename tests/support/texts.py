"""Adversarial texts for tokenizers and readers, a small natural one, and the documents of chunks."""

import random
from collections.abc import Iterable

from lmtool.data.corpus import MultiDocumentChunk

HOSTILE = {
    "empty": "",
    "runs of spaces": "a  b   c    d" + " " * 70 + "e" + " " * 9,
    "mixed white space": " \t\n \r\n\r\n\v\f\x1c\x1d\x1e\x1f\x85\u00a0\u1680\u2003\u2028\u2029\u202f\u3000 x \n\n\n y",
    "combining marks": "e\u0301 a\u0308o\u0323\u0302 \u0301start n\u0303\u0303\u0303 \u0e01\u0e33 \u1100\u1161",
    "digits": "1 22 333 4444 1,000.5e-3 ٣٤٥ ४५६ ²³ ½ Ⅷ ㊿ x1y2z3",
    "contractions": "don't DON'T we'll've 'tis ''s 's 'S it's'd \u2019s rock'n'roll",
    "specials": "[PAD][BOS] [EOS][UNK]\n[MASK] [SEP]x[CLS] <extra_id_0><extra_id_99> <|endoftext|> [pad] [ UNK ]",
    "line ends": "one\r\ntwo\rthree\n\nfour\r\n\r\n",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈🇩🇪 ❤️ 👍🏽👍🏿 #️⃣",
    "scripts": "日本語のテキスト。中文、没有空格 עברית العربية हिन्दी ไทย Ελληνικά русский",
    "odd code points": "\x00\x01\x7f\x80\xad\u200b\u200d\u202e\ufeff\ufffd\ufffe\uffff\ue000\U000e0001\U0010ffff",
    "one letter": "a" * 5000,
    "one mark": "!" * 5000 + "=" * 5000,
    "one digit": "7" * 5000,
    "one space": "x" + " " * 5000 + "x",
    "line ends only": "\n" * 5000,
    "separator": "\va\v\v b\v",
    "punctuation": '(a)[b]{c}<d>/e\\f|g~h`i@j#k$l%m^n&o*p_q+r=s;t:u"v,w.x?y!',
}


def prose(n_words: int, seed: int = 0) -> str:
    """English-like lines, some blank, with all the usual punctuation."""
    rng = random.Random(seed)
    words = ["the", "of", "and", "to", "in", "king", "queen", "said", "don't", "well-known", "house", "river", "1984"]
    words += ["I", "you;", "walked,", "where?", "café"]
    words += ["".join(rng.choices("aeioustnrlmdpk", k=rng.randint(2, 9))) for _ in range(300)]
    lines, line = [], []
    for _ in range(n_words):
        line.append(rng.choice(words[:16]) if rng.random() < 0.5 else rng.choice(words))
        if rng.random() < 0.1:
            lines.append(" ".join(line).capitalize() + rng.choice([".", "!", '."', "", " "]))
            line = []
            if rng.random() < 0.2:
                lines.append("")
    return "\n".join([*lines, " ".join(line)])


def documents(chunks: Iterable[MultiDocumentChunk]) -> list[str]:
    """The documents of chunks, whose beginnings and ends have to fit together."""
    found: list[str] = []
    is_open = False
    for chunk in chunks:
        assert chunk.starts != is_open
        texts = list(chunk.texts)
        if is_open:
            found[-1] += texts.pop(0)
        found += texts
        is_open = not chunk.ends
    assert not is_open
    return found
