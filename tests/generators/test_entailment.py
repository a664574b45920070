"""The labels of entailment.csv and kinship.csv follow from the texts: readers that share nothing with the generator."""

import re
from collections.abc import Iterator

from tests.generators.reading import rows

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
UNITS += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]
MORE = (
    "is taller than|swam faster than|was quicker than|arrived before|got there before"
    "|caught more fish than|did better than|lives nearer to (?:the sea|it) than"
)
LESS = (
    "is shorter than|swam more slowly than|was slower than|arrived after|got there after"
    "|caught fewer fish than|did worse than|lives farther from (?:the sea|it) than"
)
Pair = tuple[str, str]


def claims(name: str, pattern: str, at_least: int) -> Iterator[tuple[re.Match[str], list[str], str]]:
    """The claim, the sentences of the premise and the label of each row whose hypothesis begins like the pattern."""
    found = [(re.match(pattern, row["hypothesis"]), row) for part in rows(name) for row in part]
    read = [(claim, row["premise"].removesuffix(".").split(". "), row["label"]) for claim, row in found if claim]
    assert len(read) > at_least
    yield from read


def ordered(sentence: str) -> Pair | None:
    """(who comes first, who comes second) of a comparison."""
    if match := re.search(rf"(\w+) (?:{MORE}) (\w+)", sentence):
        return match[1], match[2]
    if match := re.search(rf"(\w+) (?:{LESS}) (\w+)", sentence):
        return match[2], match[1]
    return None


def test_who_came_first_follows_from_the_premise() -> None:
    for match, sentences, label in claims("entailment", rf".*(\w+) (?:{MORE}|{LESS}) (\w+)", 500):
        claim = ordered(match.string)
        assert claim is not None
        before = {pair for sentence in sentences if (pair := ordered(sentence))}
        assert len(before) == 3
        for _ in range(3):
            before |= {(a, d) for a, b in before for c, d in before if b == c}
        follows = "entailment" if claim in before else "contradiction" if claim[::-1] in before else "neutral"
        assert follows == label, match.string


def test_how_many_follows_from_the_premise() -> None:
    """The sum decides, with "a few" for anything from one to eight."""
    pattern = r"(\w+) (?:now )?has (exactly|more than|fewer than) (\w+) (\w+)"
    for claim, sentences, label in claims("entailment", pattern, 500):
        name, relation, n, goods = claim[1], claim[2], UNITS.index(claim[3]), claim[4]
        single = goods.removesuffix("es") if goods.endswith("ches") else goods.removesuffix("s")
        now: set[int] = set()
        for sentence in sentences:
            match = re.search(rf"(a few|[a-z]+) (?:more )?(?:{goods}|{single})\b", sentence)
            if not match:
                continue
            steps = range(1, 9) if match[1] == "a few" else [UNITS.index(match[1])]
            given = re.search(rf"gave (?:him|her|{name}) ", sentence)
            less = re.search(r" (?:lost|sold|took|gave) ", sentence) and not given
            now = {old + (-step if less else step) for old in now or {0} for step in steps}
        worlds = {{"exactly": k == n, "more than": k > n, "fewer than": k < n}[relation] for k in now if k > 0}
        follows = "neutral" if len(worlds) == 2 else "entailment" if worlds == {True} else "contradiction"
        assert follows == label, claim.string


def test_whether_a_promise_was_kept_follows_from_the_premise() -> None:
    n_read = 0
    for claim, sentences, label in claims("entailment", r"(\w+)", 200):
        due, done = {}, {}
        for sentence in sentences:
            if match := re.match(r"On Monday (\w+) promised .* by (\w+)", sentence):
                due[match[1]] = DAYS.index(match[2])
            elif match := re.match(r'"I shall .* by (\w+)," (\w+) promised', sentence):
                due[match[2]] = DAYS.index(match[1])
            elif match := re.match(r"(?:On|It was) (\w+)(?: when)? ([A-Z]\w+) ", sentence):
                done[match[2]] = DAYS.index(match[1])
        if claim[1] in due and claim[1] in done:
            right = not re.search(r"broke|did not keep", claim.string)
            kept = done[claim[1]] <= due[claim[1]]
            assert label == ("entailment" if kept == right else "contradiction"), claim.string
            n_read += 1
    assert n_read > 200


def test_who_is_older_follows_from_the_premise() -> None:
    for claim, sentences, label in claims("kinship", r"(\w+) is (older|younger) than (\w+)", 150):
        before: set[Pair] = set()
        twins: set[Pair] = set()
        for sentence in sentences:
            if match := re.match(r"(\w+) (?:is older than|was born \w+ years before) (\w+)", sentence):
                before.add((match[1], match[2]))
            elif match := re.match(r"(\w+) (?:is younger than|was born \w+ years after) (\w+)", sentence):
                before.add((match[2], match[1]))
            elif match := re.match(r"(\w+) is (?:(\w+)'s|the) (father|mother|son|daughter)(?: of (\w+))?$", sentence):
                pair = (match[1], match[2] or match[4])
                before.add(pair if match[3] in ("father", "mother") else pair[::-1])
            elif match := re.match(r"(\w+) and (\w+) are twins|(\w+) was born on the same day as (\w+)", sentence):
                pair = (match[1] or match[3], match[2] or match[4])
                twins |= {pair, pair[::-1]}
        for _ in range(4):
            links = before | twins
            before |= {(a, d) for a, b in links for c, d in links if b == c and ((a, b) in before or (c, d) in before)}
        goal = (claim[1], claim[3]) if claim[2] == "older" else (claim[3], claim[1])
        assert (goal in before) == (label == "entailment"), claim.string


def test_how_old_follows_from_the_premise() -> None:
    for claim, sentences, label in claims("kinship", r"(\w+) is (\w+) years old\.", 150):
        premise = ". ".join(sentences) + "."
        stated = re.findall(r"(\w+) (?:is (\w+) years old|has just turned (\w+))\.", premise)
        ages = {name: UNITS.index(one or other) for name, one, other in stated}
        assert len(ages) == 1
        for _ in range(3):
            for one, far, way, other in re.findall(r"(\w+) is (\w+) years? (older|younger) than (\w+)", premise):
                years = (1 if far == "a" else UNITS.index(far)) * (1 if way == "older" else -1)
                if other in ages:
                    ages[one] = ages[other] + years
                elif one in ages:
                    ages[other] = ages[one] - years
        assert (ages[claim[1]] == UNITS.index(claim[2])) == (label == "entailment"), claim.string
