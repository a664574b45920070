"""What the small files beside a published tokenizer say: its class, special tokens, options and chat template.

The reading of Transformers 5 is followed, also where files contradict each other.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tokenizers import AddedToken, Tokenizer

from lmtool import durable
from lmtool.errors import CheckpointError
from lmtool.interop.families import FAMILIES
from lmtool.printable import printable
from lmtool.tokenization.inner import MAX_VOCAB_SIZE, ROLE_KEYS
from lmtool.tokenization.tokenizer import MAX_TOKENIZER_BYTES, replace_surrogates

CLASSES: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("classes.yaml").read_text(encoding="utf-8")
)
"""What each class of Transformers has, as the comment in the file says."""
FILE, LLAMA, MARIAN, T5 = "TokenizersBackend", "LlamaTokenizer", "MarianTokenizer", "T5Tokenizer"


@dataclass(frozen=True)
class TokenizerSettings:
    """The small files, merged.

    kind: the class that Transformers would make of them.
    values: tokenizer_config.json.
    roles: named special tokens, in the order of `ROLE_KEYS`; a plain string has no options of its own.
    added: further tokens by id.
    extra: special tokens without a role, or None when no file lists any.
    where: the file that most of it comes from, for errors.
    """

    kind: str
    values: Mapping[str, Any]
    roles: Mapping[str, AddedToken | str]
    added: Mapping[int, AddedToken]
    extra: list[AddedToken | str] | None
    chat_template: str | None
    where: str

    def flag(self, name: str, default: bool) -> bool:
        """An option; the default when it is missing or null. Raises CheckpointError when it is not a truth value."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise refusal(f"{name} is {_shown(value)}, not true or false", self.where)
        return value

    @property
    def names(self) -> dict[str, str]:
        """The special tokens by their roles."""
        return {role: _content(token) for role, token in self.roles.items()}

    def add_tokens(self, inner: Tokenizer) -> None:
        """Add the tokens that the vocabulary lacks, or whose options differ, in the order of Transformers."""
        pending = [token for _, token in sorted(self.added.items())]
        known = {token.content for token in [*inner.get_added_tokens_decoder().values(), *pending]}
        for token in [*self.roles.values(), *(self.extra or [])]:
            if _content(token) not in known:
                known.add(_content(token))
                pending.append(AddedToken(token, special=True) if isinstance(token, str) else token)
        special = set(self.names.values())
        for token in pending:
            token.special = token.special or token.content in special
        inner.add_tokens(pending)


def read_settings(folder: Path, model_type: str) -> TokenizerSettings:
    """Read tokenizer_config.json, special_tokens_map.json, added_tokens.json and the chat template, those there are.

    Raises CheckpointError when one is damaged.
    """
    path = folder / "tokenizer_config.json"
    where = str(path)
    values = read_object(path)
    kind = _kind(folder, values, model_type)
    if (folder / "tokenizer.json").is_file():  # which has them in its template
        values = {key: value for key, value in values.items() if key not in ("add_bos_token", "add_eos_token")}
    if "additional_special_tokens" in values and not values.get("extra_special_tokens"):
        values["extra_special_tokens"] = values.pop("additional_special_tokens")
    named = {name: values[name] for name in ROLE_KEYS if name in values}
    extra = values.get("extra_special_tokens")
    added = {}
    if "added_tokens_decoder" in values:
        listed = values["added_tokens_decoder"]
        if not isinstance(listed, dict):
            raise refusal("added_tokens_decoder is not an object", where)
        added = {_id(key, where): _token(value, where) for key, value in listed.items()}
    else:
        path = folder / "special_tokens_map.json"
        for name, value in read_object(path).items():
            if name in ROLE_KEYS:
                named[name] = _token(value, str(path), special=True) if isinstance(value, dict) else value
            elif name in ("additional_special_tokens", "extra_special_tokens") and extra is None:
                extra = value
        path = folder / "added_tokens.json"
        special = {_content(token) for token in (*named.values(), *_listed(extra, where))}
        for name, value in read_object(path).items():
            added[_id(value, str(path))] = AddedToken(name, normalized=name not in special, special=name in special)
    options = {token.content: token for token in added.values()}
    roles: dict[str, AddedToken | str] = {}
    usual = CLASSES[kind].get("roles", {})
    for name in ROLE_KEYS:
        if name not in named and name in usual:
            roles[name] = usual[name]
        elif named.get(name) is not None:
            token = _token_or_text(named[name], where)
            roles[name] = options.get(_content(token), token)
    return TokenizerSettings(
        kind=kind,
        values=values,
        roles=roles,
        added=added,
        extra=None if extra is None else _listed(extra, where),
        chat_template=_chat_template(folder, values),
        where=where,
    )


def read_bytes(path: Path, limit: int = MAX_TOKENIZER_BYTES) -> bytes:
    """The content of a file. Raises CheckpointError when it cannot be read or is too large."""
    with durable.convert_os_errors("cannot read the tokenizer", path, error_type=CheckpointError):
        return durable.read_file(path, limit)


def read_text(path: Path) -> str:
    """The content of a file of text. Raises CheckpointError as `read_bytes` does, and when it is not UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise refusal("it is not UTF-8", str(path)) from error


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises CheckpointError when it cannot be read, is too large, or is not JSON."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise refusal(f"it is not JSON: {printable(str(error))[:80]}", str(path)) from error


def refusal(what: str, where: str) -> CheckpointError:
    """An error about a file of a tokenizer."""
    return CheckpointError(
        f"this tokenizer cannot be imported: {what}",
        where=where,
        fix="the file may be damaged: download it again, or see docs/serve.md for what can be imported",
    )


def _kind(folder: Path, values: Mapping[str, Any], model_type: str) -> str:
    """The class that Transformers' AutoTokenizer takes: the declared one, unless it is known to be wrong."""
    declared = values.get("tokenizer_class") or read_object(folder / "config.json").get("tokenizer_class")
    registered = FAMILIES[model_type].tokenizer if model_type in FAMILIES else ""
    if not isinstance(declared, str):
        return registered or FILE
    name = declared.removesuffix("Fast")
    if registered == FILE or model_type == "qwen2":
        return registered
    if name == LLAMA and (folder / "tokenizer.json").is_file():
        return FILE if '"ByteLevel"' in read_text(folder / "tokenizer.json") else LLAMA
    return CLASSES[name].get("like", name) if name in CLASSES else FILE


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no file. Raises CheckpointError as `read_json`, and for others."""
    if not path.is_file():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise refusal("it is not a JSON object", str(path))
    return value


def _id(value: object, where: str) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < MAX_VOCAB_SIZE):
        raise refusal(f"{_shown(value)} is not the id of a token", where)
    return int(text)


def _token(value: object, where: str, *, special: bool | None = None) -> AddedToken:
    """An added token as JSON describes it. special: overrides what it says."""
    if not isinstance(value, dict) or not isinstance(value.get("content"), str) or not value["content"]:
        raise refusal(f"{_shown(value)} is not a token", where)
    options = {
        name: value[name] for name in ("single_word", "lstrip", "rstrip", "normalized", "special") if name in value
    }
    if special is not None:
        options["special"] = special
    if not all(isinstance(option, bool) for option in options.values()):
        raise refusal(f"{_shown(value)} is not a token", where)
    return AddedToken(value["content"], **options)


def _token_or_text(value: object, where: str) -> AddedToken | str:
    if isinstance(value, AddedToken) or (isinstance(value, str) and value):
        return value
    return _token(value, where)


def _listed(value: object, where: str) -> list[AddedToken | str]:
    if value is None:
        return []
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        raise refusal("the list of special tokens is not a list", where)
    return [_token_or_text(token, where) for token in value]


def _content(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token.content if isinstance(token, AddedToken) else str(token)


def _chat_template(folder: Path, values: Mapping[str, Any]) -> str | None:
    """From its own file, of text or JSON, else from tokenizer_config.json; of several, the one named "default"."""
    if (path := folder / "chat_template.jinja").is_file():
        return read_text(path)
    template = read_object(folder / "chat_template.json").get("chat_template") or values.get("chat_template")
    if isinstance(template, list):
        defaults = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
        template = defaults[0].get("template") if defaults else None
    if not isinstance(template, str):
        return None
    if replace_surrogates(template) != template:
        raise refusal("the chat template has lone surrogates", str(folder))
    return template


def _shown(value: object) -> str:
    return printable(repr(value)[:200])[:60]
