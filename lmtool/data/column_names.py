"""Usual names of the columns of texts, labels and pairs, by language.

Names are compared as `plain_name` gives them. English ones win over those of other languages, and earlier ones of a
language over later ones. A name that means a text to some and a label to others (`Bewertung`, `note`) is in no list:
then the cells decide.
"""

# ruff: noqa: RUF001  names are in their own scripts

import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain

from lmtool.data.rowfile import bare_name


@lru_cache(4096)
def plain_name(name: str) -> str:
    """A name for comparison with usual ones: `bare_name` without accents and other marks on letters."""
    letters = unicodedata.normalize("NFKD", bare_name(name))
    return "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")


_TEXTS: Mapping[str, str] = {
    "en": "text sentence review reviewtext reviewbody content comment commenttext body message tweet post document "
    "article utterance question query description abstract headline title sms email premise",
    "de": "satz kommentar kommentartext rezension rezensionstext inhalt nachricht beitrag dokument artikel frage "
    "beschreibung überschrift titel aussage äußerung meldung",
    "fr": "texte phrase commentaire avis contenu messages publication critique énoncé titre résumé",
    "es": "texto oración frase comentario reseña opinión contenido mensaje publicación artículo pregunta descripción "
    "título titular resumen cuerpo",
    "pt": "sentença frase comentário resenha conteúdo mensagem artigo pergunta descrição título resumo corpo",
    "it": "testo frase commento recensione contenuto messaggio articolo domanda descrizione titolo corpo",
    "nl": "tekst zin opmerking commentaar recensie inhoud bericht artikel vraag beschrijving titel",
    "pl": "tekst zdanie komentarz recenzja opinia treść wiadomość artykuł pytanie opis tytuł",
    "ru": "текст предложение комментарий отзыв сообщение содержание пост статья вопрос описание заголовок твит",
    "zh": "文本 内容 內容 评论 評論 评论内容 評論內容 句子 正文 文字 文章 标题 標題 问题 問題 描述 留言 消息 微博",
    "ja": "テキスト 本文 文 文章 コメント レビュー 内容 タイトル 質問 投稿 メッセージ 説明",
    "ko": "텍스트 문장 내용 댓글 리뷰 본문 제목 질문 메시지 설명",
    "ar": "نص النص تعليق التعليق جملة الجملة مراجعة المراجعة تغريدة التغريدة رسالة الرسالة محتوى المحتوى سؤال السؤال "
    "عنوان العنوان وصف الوصف",
    "el": "κείμενο πρόταση σχόλιο κριτική μήνυμα περιεχόμενο άρθρο ερώτηση περιγραφή τίτλος",
    "tr": "metin yorum cümle mesaj içerik makale soru açıklama başlık",
    "hi": "टेक्स्ट पाठ टिप्पणी वाक्य समीक्षा संदेश सामग्री प्रश्न विवरण शीर्षक",
    "id": "teks kalimat komentar ulasan pesan isi artikel pertanyaan deskripsi judul",
    "uk": "текст речення коментар відгук повідомлення стаття питання опис заголовок",
    "cs": "text věta komentář recenze zpráva obsah článek otázka popis titulek",
    "sv": "mening kommentar recension innehåll meddelande artikel fråga beskrivning rubrik",
}
_LABELS: Mapping[str, str] = {
    "en": "goldlabel label labels class classes category categories sentiment topic intent emotion polarity tag tags "
    "stars rating score similarity target y isduplicate quality genre",
    "de": "etikett klasse klassen kategorie kategorien stimmung thema absicht gefühl polarität sterne punktzahl "
    "ziel qualität",
    "fr": "étiquette classe catégorie catégories thème sujet émotion polarité étoiles cible qualité intention",
    "es": "etiqueta clase categoría categorías sentimiento tema emoción polaridad estrellas puntuación valoración "
    "calificación objetivo calidad intención género",
    "pt": "etiqueta rótulo classe categoria categorias sentimento tema assunto emoção polaridade estrelas pontuação "
    "classificação alvo qualidade intenção gênero",
    "it": "etichetta classe categoria categorie sentimento tema argomento emozione polarità stelle punteggio voto "
    "qualità intento genere",
    "nl": "klasse categorie categorieën gevoel onderwerp thema emotie polariteit sterren cijfer beoordelingscijfer "
    "kwaliteit intentie",
    "pl": "etykieta klasa kategoria kategorie nastrój sentyment temat emocja gwiazdki ocena jakość intencja gatunek",
    "ru": "метка класс категория категории тональность тема эмоция оценка рейтинг звезды тег намерение жанр",
    "zh": "标签 標籤 标记 標記 类别 類別 分类 分類 情感 情绪 情緒 主题 主題 评分 評分 星级 星級 意图 意圖",
    "ja": "ラベル カテゴリ カテゴリー 分類 クラス 感情 極性 トピック 話題 意図 ジャンル",
    "ko": "라벨 레이블 분류 카테고리 클래스 감정 감성 주제 평점 의도",
    "ar": "تصنيف التصنيف فئة الفئة صنف الصنف تسمية التسمية وسم الوسم مشاعر المشاعر موضوع الموضوع تقييم التقييم",
    "el": "ετικέτα κλάση κατηγορία κατηγορίες συναίσθημα θέμα βαθμολογία αστέρια πρόθεση",
    "tr": "etiket sınıf kategori duygu konu puan yıldız niyet",
    "hi": "लेबल श्रेणी वर्ग भावना विषय रेटिंग",
    "id": "kelas kategori sentimen topik emosi bintang peringkat",
    "uk": "мітка клас категорія тональність тема емоція оцінка рейтинг",
    "cs": "štítek třída kategorie nálada téma hodnocení známka",
    "sv": "etikett klass kategori känsla ämne betyg stjärnor",
}
_SENTENCE_PAIRS: Mapping[str, str] = {
    "en": "premise/hypothesis sentence1/sentence2 text1/text2 texta/textb #1string/#2string question1/question2 "
    "question/sentence query/passage question/passage question/context question/answer",
    "de": "prämisse/hypothese satz1/satz2 frage1/frage2 frage/antwort",
    "fr": "prémisse/hypothèse phrase1/phrase2 texte1/texte2 question/réponse",
    "es": "premisa/hipótesis frase1/frase2 oración1/oración2 texto1/texto2 pregunta1/pregunta2 pregunta/respuesta",
    "pt": "premissa/hipótese frase1/frase2 sentença1/sentença2 texto1/texto2 pergunta1/pergunta2 pergunta/resposta",
    "it": "premessa/ipotesi frase1/frase2 testo1/testo2 domanda1/domanda2 domanda/risposta",
    "nl": "premisse/hypothese zin1/zin2 tekst1/tekst2 vraag1/vraag2 vraag/antwoord",
    "pl": "przesłanka/hipoteza zdanie1/zdanie2 tekst1/tekst2 pytanie1/pytanie2 pytanie/odpowiedź",
    "ru": "посылка/гипотеза предложение1/предложение2 текст1/текст2 вопрос1/вопрос2 вопрос/ответ",
    "zh": "前提/假设 前提/假設 句子1/句子2 文本1/文本2 问题1/问题2 問題1/問題2 问题/答案 问题/回答 問題/答案",
    "ja": "前提/仮説 文1/文2 テキスト1/テキスト2 質問1/質問2 質問/回答",
    "ko": "전제/가설 문장1/문장2 텍스트1/텍스트2 질문1/질문2 질문/답변",
    "ar": "فرضية/نتيجة جملة1/جملة2 نص1/نص2 سؤال1/سؤال2 سؤال/جواب",
    "el": "προκείμενη/υπόθεση πρόταση1/πρόταση2 κείμενο1/κείμενο2 ερώτηση1/ερώτηση2 ερώτηση/απάντηση",
    "tr": "öncül/hipotez cümle1/cümle2 metin1/metin2 soru1/soru2 soru/cevap",
}
_SOURCES_AND_TARGETS: Mapping[str, str] = {
    "en": "source/target src/tgt src/trg input/output article/highlights article/summary document/summary text/summary "
    "dialogue/summary prompt/completion prompt/response prompt/answer prompt/output query/response question/response "
    "question/answer",
    "de": "quelle/ziel eingabe/ausgabe frage/antwort artikel/zusammenfassung text/zusammenfassung",
    "fr": "source/cible entrée/sortie question/réponse article/résumé texte/résumé",
    "es": "origen/destino fuente/objetivo entrada/salida pregunta/respuesta artículo/resumen texto/resumen",
    "pt": "origem/destino fonte/alvo entrada/saída pergunta/resposta artigo/resumo texto/resumo",
    "it": "origine/destinazione ingresso/uscita domanda/risposta articolo/riassunto testo/riassunto",
    "nl": "bron/doel invoer/uitvoer vraag/antwoord artikel/samenvatting tekst/samenvatting",
    "pl": "źródło/cel wejście/wyjście pytanie/odpowiedź artykuł/streszczenie tekst/streszczenie",
    "ru": "источник/цель вход/выход вопрос/ответ статья/резюме текст/резюме",
    "zh": "源文/译文 源文/譯文 原文/译文 原文/譯文 输入/输出 輸入/輸出 问题/答案 問題/答案 问题/回答 文章/摘要",
    "ja": "原文/訳文 入力/出力 質問/回答 質問/答え 文章/要約 本文/要約",
    "ko": "원문/번역 입력/출력 질문/답변 질문/대답 본문/요약",
    "ar": "مصدر/هدف المصدر/الهدف سؤال/جواب السؤال/الجواب سؤال/إجابة السؤال/الإجابة نص/ملخص",
    "el": "πηγή/στόχος είσοδος/έξοδος ερώτηση/απάντηση άρθρο/περίληψη κείμενο/περίληψη",
    "tr": "kaynak/hedef girdi/çıktı soru/cevap soru/yanıt makale/özet metin/özet",
}


def _names(by_language: Mapping[str, str]) -> tuple[str, ...]:
    """The names of all languages as `plain_name` gives them, each once, English first."""
    return tuple(dict.fromkeys(map(plain_name, chain.from_iterable(map(str.split, by_language.values())))))


def _pairs(by_language: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    pairs = (pair.partition("/") for pair in chain.from_iterable(map(str.split, by_language.values())))
    return tuple(dict.fromkeys((plain_name(first), plain_name(second)) for first, _, second in pairs))


TEXTS = _names(_TEXTS)
LABELS = _names(_LABELS)
TEXT_PAIRS = _pairs(_SENTENCE_PAIRS)
"""Two texts of a row with one label."""
TRANSLATIONS = _pairs(_SOURCES_AND_TARGETS)
"""A source and its target."""
USUAL = frozenset((*TEXTS, *LABELS, *chain(*TEXT_PAIRS, *TRANSLATIONS)))
"""All of these."""
LANGUAGES = frozenset(
    map(
        plain_name,
        (
            *("ar", "bg", "cs", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu", "it"),
            *("ja", "ko", "lt", "lv", "nb", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "sv", "th", "tr", "uk"),
            *("vi", "zh", "arabic", "chinese", "czech", "danish", "dutch", "english", "finnish", "french", "german"),
            *("greek", "hebrew", "hindi", "hungarian", "indonesian", "italian", "japanese", "korean", "norwegian"),
            *("polish", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish", "ukrainian"),
            *("vietnamese", "deutsch", "englisch", "französisch", "spanisch", "italienisch", "russisch", "français"),
            *("anglais", "allemand", "espagnol", "español", "inglés", "francés", "alemán", "português", "inglês"),
            *("italiano", "inglese", "francese", "tedesco", "nederlands", "engels", "polski", "angielski", "русский"),
            *("английский", "немецкий", "中文", "英文", "英语", "英語", "日本語", "日语", "العربية", "الإنجليزية"),
            *("ελληνικά", "αγγλικά", "türkçe", "ingilizce", "한국어", "영어"),
        ),
    )
)
"""Codes (ISO 639-1) and names of languages, without codes of other meaning, such as id and no.

Two columns with such names are a translation, from the first to the second."""


def first_column(names: Iterable[str], wanted: Iterable[str], exclude: Iterable[str | None] = ()) -> str | None:
    """The column among `names` that has the first of the wanted names, as `plain_name` gives them, and is not one of
    `exclude`; None for none."""
    excluded = tuple(exclude)
    left = [name for name in names if name not in excluded]
    return next((name for plain in wanted for name in left if plain_name(name) == plain), None)
