"""Finds out whether texts are English, and chooses a published encoder for their language."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

ENGLISH_ENCODER = "hf:sentence-transformers/all-MiniLM-L6-v2"
"""A small published encoder of English sentences."""

MULTILINGUAL_ENCODER = "hf:sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
"""A small published encoder of sentences in fifty languages (Reimers and Gurevych 2020)."""

MIN_LATIN_SHARE = 0.9
"""Share of Latin letters from which texts may be English."""

_FREQUENT_WORDS: Mapping[str, str] = {
    "en": "the and of to is it that this with for you not are have be but was they my what from his her we an as at",
    "de": "der die das und ist nicht ich ein eine mit zu auf den sie für es dem sich war auch wie aber",
    "fr": "le la les et est que pas une des dans je pour qui en un ce sur il du avec mais",
    "es": "el la que y los las por con una es del en un para no lo se como pero muy",
    "pt": "o que não uma os com para em do da um é no na se por mais mas muito",
    "it": "il di che non è per una sono con gli la un del della in ma più le si",
    "nl": "de het een en van ik niet dat op zijn is in te voor met maar ook er",
    "pl": "i nie się na jest to że z w do jak ale o po co tak",
    "cs": "a je se na že v to s z o ale jako jsem byl i",
    "sv": "och att det som en på är inte jag för av med den men ett",
    "da": "og det at er ikke jeg på som til en af med den men et for har",
    "fi": "ja on ei se että ole oli mutta hän kun niin myös",
    "hu": "a az és nem hogy egy is ez meg de volt csak",
    "tr": "ve bir bu da için çok ne de ile gibi ama daha",
    "ro": "și nu este în care pe mai de un o la cu sunt dar",
    "id": "yang dan di ini itu tidak dengan untuk saya dari ada ke",
    "vi": "là không và của có được một cho người tôi rất này",
}
"""Words that make up a tenth of a text or more, by language."""
_FREQUENT_WORD_SETS = {language: frozenset(words.split()) for language, words in _FREQUENT_WORDS.items()}


def is_english(texts: Iterable[str]) -> bool:
    """Returns whether the letters of texts are Latin, and more words are frequent English words than those of any other
    language. Texts without such a word are not English."""
    letters: Counter[bool] = Counter()
    hits: Counter[str] = Counter()
    for text in texts:
        for word, count in Counter(re.findall(r"[^\W\d_]+", text.lower())).items():
            letters[word[0] <= "ɏ"] += count * len(word)
            for language, frequent in _FREQUENT_WORD_SETS.items():
                hits[language] += count * (word in frequent)
    is_latin = letters[True] >= MIN_LATIN_SHARE * letters.total()
    return is_latin and hits["en"] > 0 and hits["en"] == max(hits.values())


def choose_encoder(texts: Iterable[str]) -> str:
    """Returns a small published encoder of sentences in the language of the texts."""
    return ENGLISH_ENCODER if is_english(texts) else MULTILINGUAL_ENCODER
