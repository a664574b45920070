"""`lmtool chat`: piped messages as a script, and a terminal with line editing."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest
from transformers import PreTrainedTokenizerFast

from lmtool import SamplingParams, load
from lmtool.printable import printable
from lmtool.tasks.cells import parse_messages
from tests.generation import talkers
from tests.support import forks
from tests.support.cli import CommandLine, Outcome, Terminal

Chat = Callable[..., Outcome]


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model with a chat template and a long context."""
    return talkers.publish(tmp_path_factory.mktemp("published") / "talker", context=100_000)


@pytest.fixture(scope="session")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a short context."""
    return talkers.publish(tmp_path_factory.mktemp("published") / "forgetful", context=90)


@pytest.fixture
def chat(lmtool: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """The outcome of a chat with piped messages."""

    def run(stdin: str | bytes, *arguments: object) -> Outcome:
        content = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="latin-1"))
        return lmtool("chat", *arguments)

    return run


def test_json_has_one_record_for_each_answer_and_stdout_nothing_else(chat: Chat, talker: Path) -> None:
    """Each line that is not blank is a message, in UTF-8 whatever the locale says; after a space also with a slash."""
    settings = SamplingParams(max_new_tokens=12, seed=3, temperature=0.9, top_k=30, top_p=0.95)
    model, messages = load(str(talker)), [{"role": "system", "content": "Be kind."}]
    for question in ("Who?", "/é, sure?"):
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": model.chat(messages, settings)})
    options = "--seed 3 --temperature 0.9 --top-k 30 --top-p 0.95 --max-new-tokens 12 --json --quiet"
    outcome = chat("Who?\r\n\n  \n /é, sure?", talker, *options.split(), "--system", "Be kind.")
    assert (outcome.code, outcome.err) == (0, "")
    found = outcome.records()
    assert [one["content"] for one in found] == [one["content"] for one in messages if one["role"] == "assistant"]
    theirs = PreTrainedTokenizerFast.from_pretrained(talker)
    for one in found:
        assert one.keys() == {"role", "content", "tokens", "finish_reason"}
        assert one["role"] == "assistant"
        assert one["finish_reason"] == ("length" if len(one["tokens"]) == 12 else "end")
        assert theirs.decode(one["tokens"], skip_special_tokens=True).lstrip() == one["content"]


@pytest.mark.system
def test_a_program_may_wait_for_each_answer(talker: Path) -> None:
    command = ["-m", "lmtool", "chat", str(talker), "--json", "-q", "--max-new-tokens", "3", "--seed", "1"]
    with forks.begin(command, files=(subprocess.PIPE, subprocess.PIPE, None)) as process:
        assert process.stdin
        assert process.stdout
        for _ in range(2):
            process.stdin.write("Who?\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["role"] == "assistant"
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait() == 0


def test_commands_save_reset_and_set_the_system_message(chat: Chat, talker: Path, home: Path) -> None:
    script = "Who?\n/save a.jsonl\n/reset\n/system Be kind.\nSure?\n/save b c.jsonl\n/system\n/help\n/exit\nnever"
    outcome = chat(script, talker, "--max-new-tokens", "12", "--min-new-tokens", "9", "--json", "--seed", "2")
    first, second = (one["content"] for one in outcome.records())
    saved = [json.loads((home / name).read_text(encoding="utf-8"))["messages"] for name in ("a.jsonl", "b c.jsonl")]
    assert [[one["content"] for one in messages] for messages in saved] == [
        ["Who?", first],
        ["Be kind.", "Sure?", second],
    ]
    assert all(parse_messages(messages) for messages in saved)


@pytest.mark.parametrize("line", ["/bye", "/quit "])
def test_a_command_ends_it_and_is_in_the_list(chat: Chat, talker: Path, line: str) -> None:
    outcome = chat(f"/help\n{line}\nWho?\n", talker, "--max-new-tokens", "3")
    assert (outcome.code, outcome.out) == (0, "")
    assert line.strip() in outcome.err


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("/frobnicate \x1b[31m", 2),
        ("/reset now", 2),
        ("/save taken", 2),
        ("/save none/x", 5),
        ("/save a\0b", 2),
        ("/system refuse me", 3),
        ("caf\udce9", 2),
    ],
)
def test_what_is_wrong_is_told_and_the_chat_goes_on(chat: Chat, talker: Path, home: Path, line: str, code: int) -> None:
    (home / "taken").write_text("mine")
    stdin = f"Who?\n{line}\nSure?\n".encode(errors="surrogateescape")
    outcome = chat(stdin, talker, "--max-new-tokens", "12", "--min-new-tokens", "9", "--json", "-q", "--seed", "2")
    assert outcome.code == code
    assert len(outcome.records()) == 2
    assert 1 <= len(outcome.err.splitlines()) <= 3
    assert all(one.isprintable() for one in outcome.err.splitlines())
    assert (home / "taken").read_text() == "mine"
    assert len(list(home.iterdir())) == 1


def test_turns_that_leave_the_context_are_told(chat: Chat, forgetful: Path) -> None:
    outcome = chat("Who saw the ball?\n" * 6, forgetful, "--max-new-tokens", "20", "--json", "--seed", "2", "-q")
    assert outcome.code == 0
    assert len(outcome.records()) == 6
    assert "the context is full: the model no longer reads the first 2 messages" in outcome.err


def test_without_messages_nothing_is_answered(
    chat: Chat, talker: Path, monkeypatch: pytest.MonkeyPatch, lmtool: CommandLine
) -> None:
    assert chat("", talker, "-q").out == ""
    monkeypatch.setattr(sys, "stdin", None)
    assert lmtool.succeeds("chat", talker, "-q").out == ""
    sys.stdin.close()


def test_control_characters_are_escaped_on_a_terminal_only(
    chat: Chat, talker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [talker, "-q", "--seed", "1", "--min-new-tokens", "90", "--max-new-tokens", "90"]
    raw = chat("Who?\n", *arguments).out
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    chat("Who?\n", *arguments)
    assert not all(character.isprintable() for character in raw.replace("\n", ""))
    assert screen.content() == printable(raw, keep_line_breaks=True)
    assert "\\x" in screen.content()


# A terminal.

UP, LEFT, ENTER, CTRL_C, CTRL_D = "\x1b[A", "\x1b[D", "\r", "\x03", "\x04"
ON_TERMINAL = """
import os
os.setsid()
os.open(os.ttyname(0), os.O_RDWR)  # it controls this session, so that Ctrl-C is a signal
from lmtool.cli import main
main()
"""


class Session:
    """lmtool on a terminal of its own, typed to and read."""

    def __init__(self, folder: Path, *arguments: object, stdout: IO[Any] | None = None) -> None:
        self._terminal, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        env = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        words = ["-c", ON_TERMINAL, "chat", *map(str, arguments)]
        self.process = forks.begin(words, cwd=folder, env=env, files=(theirs, stdout or theirs, theirs))
        os.close(theirs)
        self.seen = ""
        self._n_read = 0

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Read on to a pattern; returns what was before it."""
        until = time.monotonic() + seconds
        while not (found := re.compile(pattern).search(self.seen, self._n_read)):
            assert time.monotonic() < until, (pattern, self.seen[self._n_read :])
            if select.select([self._terminal], [], [], 1)[0]:
                try:
                    self.seen += os.read(self._terminal, 65536).decode(errors="replace")
                except OSError:  # it was closed
                    pytest.fail(f"no {pattern!r} in {self.seen[self._n_read :]!r}")
        before, self._n_read = self.seen[self._n_read : found.start()], found.end()
        return before

    def ready(self) -> None:
        """Wait for the prompt."""
        self.wait_for(r"\x1b\[\?2004h[^>]*>.*?\x1b\[\?25h")

    def echoes(self) -> bool:
        """Whether the terminal is as before."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def writes(self) -> None:
        """Wait for some of an answer."""
        self.wait_for(r"\x1b\[\?2004l")
        self.wait_for(r"[^\x1b]{30}")

    def end(self) -> int:
        """The exit code."""
        with suppress(OSError):
            while select.select([self._terminal], [], [], 60)[0] and os.read(self._terminal, 65536):
                pass
        return self.process.wait(60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)


Talk = Callable[..., Session]


@pytest.fixture
def talk(home: Path) -> Iterator[Talk]:
    sessions: list[Session] = []

    def begin(*arguments: object, **options: Any) -> Session:
        sessions.append(Session(home, *arguments, **options))
        return sessions[-1]

    yield begin
    for session in sessions:
        session.close()


@pytest.mark.system
def test_a_conversation_on_a_terminal(talk: Talk, talker: Path, home: Path) -> None:
    session = talk(talker, "--seed", "1", "--min-new-tokens", "90000", "--max-new-tokens", "90000")
    session.wait_for("Ctrl-D ends")
    session.ready()
    session.type("Who?" + ENTER)
    session.writes()
    session.type(CTRL_C)
    session.wait_for("stopped")
    session.ready()
    session.type(UP)
    session.wait_for(r"Who\?")
    session.type(LEFT + "se" + ENTER)
    session.writes()
    session.type(CTRL_C)
    session.wait_for("stopped")
    session.ready()
    session.type("half a message" + CTRL_C)
    session.ready()
    session.type(CTRL_C)
    session.ready()
    session.process.send_signal(signal.SIGINT)
    session.ready()
    session.type("/save talk.jsonl" + ENTER)
    session.wait_for(r"saved: talk\.jsonl")
    session.ready()
    session.type(CTRL_D)
    assert session.end() == 0
    messages = json.loads((home / "talk.jsonl").read_text(encoding="utf-8"))["messages"]
    assert [one["content"] for one in messages if one["role"] == "user"] == ["Who?", "Whose?"]
    answers = [one for one in messages if one["role"] == "assistant"]
    assert len(answers) == 2
    assert all(one["cut"] for one in answers)


@pytest.mark.system
def test_answers_alone_go_to_a_file(talk: Talk, talker: Path, home: Path) -> None:
    with (home / "answers.txt").open("wb") as file:
        session = talk(talker, "--greedy", "--max-new-tokens", "12", "-q", stdout=file)
        session.ready()
        session.type("Who?" + ENTER)
        session.ready()
        session.type("/exit" + ENTER)
        assert session.end() == 0
    answer = load(str(talker)).chat([{"role": "user", "content": "Who?"}], SamplingParams("greedy", max_new_tokens=12))
    assert (home / "answers.txt").read_text(encoding="utf-8") == f"{answer}\n"


@pytest.mark.system
def test_sigterm_ends_it(talk: Talk, talker: Path) -> None:
    session = talk(talker, "-q")
    session.ready()
    assert not session.echoes()
    session.process.terminate()
    assert session.end() == 143
    assert session.echoes()


@pytest.mark.system
def test_ctrl_c_ends_a_script(talker: Path, home: Path) -> None:
    command = ["-m", "lmtool", "chat", str(talker), "--min-new-tokens", "90000", "--max-new-tokens", "90000"]
    with forks.begin(command, cwd=home, files=(subprocess.PIPE, subprocess.PIPE, None)) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write("Who?\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
