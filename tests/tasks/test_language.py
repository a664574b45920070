"""Whether texts are English, and which encoder is advised for them."""

import pytest

from lmtool.tasks.language import ENGLISH_ENCODER, MULTILINGUAL_ENCODER, choose_encoder, is_english

ENGLISH = [
    "A film without a single dull minute, and the ending is lovely.",
    "I have no idea what they were thinking of when they made this.",
    "Not worth the price; it broke after a week.",
]
OTHERS = {
    "German": ["Der Film war nicht gut, und das Ende ist langweilig.", "Ich habe mich mit dem Kauf sehr gefreut."],
    "French": ["Le film est trop long et je ne suis pas content.", "Une belle histoire dans les montagnes."],
    "Spanish": ["La película es muy buena y los actores también.", "No me gustó el final de la historia."],
    "Portuguese": ["O filme não é bom, mas a música é muito bonita.", "Gostei do final e da história."],
    "Italian": ["Il film non è male, ma la storia è troppo lunga.", "Una bella sorpresa per tutti gli amici."],
    "Dutch": ["De film is niet goed en het einde is saai.", "Ik vond het een mooi verhaal van een schrijver."],
    "Polish": ["Film nie jest zły, ale to nie to samo.", "Nie podoba mi się, że trzeba czekać na koniec."],
    "Chinese": ["这部电影非常好看演员也很出色。"],
    "Russian": ["Фильм очень хороший, и конец прекрасный."],
    "nothing": ["", "1234 !!"],
    "names": ["Kowalski", "Dubois", "Rossi"],
    "most Chinese": [*["这部电影非常好看演员也很出色。"] * 3, "The cat"],
}


@pytest.mark.parametrize("others", [[], ["Chez les amis", "日本 und so weiter"]])
def test_english_texts_are_english_with_a_few_words_of_others(others: list[str]) -> None:
    assert is_english([*ENGLISH, *others])
    assert choose_encoder([*ENGLISH, *others]) == ENGLISH_ENCODER


@pytest.mark.parametrize("language", OTHERS)
def test_an_english_encoder_is_not_advised_for_texts_in_another_language(language: str) -> None:
    assert not is_english(OTHERS[language])
    assert choose_encoder(OTHERS[language]) == MULTILINGUAL_ENCODER
