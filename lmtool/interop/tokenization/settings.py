"""What the small files beside a published tokenizer say: its class, special tokens, options and chat template.

They are read as Transformers 5 reads them, also where they contradict each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tokenizers import AddedToken, Tokenizer

from lmtool.errors import CheckpointError
from lmtool.interop.families import FAMILIES
from lmtool.interop.files import import_error, read_json_if_exists, read_text
from lmtool.printable import printable_repr
from lmtool.tokenization.inner import MAX_VOCAB_SIZE, ROLE_KEYS
from lmtool.tokenization.tokenizer import replace_surrogates

TOKENIZER_CLASSES: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("classes.yaml").read_text(encoding="utf-8")
)
"""What each class of Transformers has, as the comment in the file says."""
GENERIC, LLAMA, MARIAN, T5 = "TokenizersBackend", "LlamaTokenizer", "MarianTokenizer", "T5Tokenizer"


@dataclass(frozen=True)
class TokenizerSettings:
    """The small files, merged.

    class_name: the class that Transformers would make of them.
    config: tokenizer_config.json.
    roles: named special tokens, in the order of `ROLE_KEYS`; a plain string has no options of its own.
    added: further tokens by id.
    extra: special tokens without a role, or None when no file lists any.
    where: the file that most of it comes from, for errors.
    """

    class_name: str
    config: Mapping[str, Any]
    roles: Mapping[str, AddedToken | str]
    added: Mapping[int, AddedToken]
    extra: list[AddedToken | str] | None
    chat_template: str | None
    where: str

    def read_flag(self, name: str, default: bool) -> bool:
        """Reads an option; the default when it is missing or null. Raises CheckpointError when it is no boolean."""
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise tokenizer_error(f"{name} is {printable_repr(value)}, not true or false", self.where)
        return value

    @property
    def special_tokens(self) -> dict[str, str]:
        """The texts of the special tokens by their roles."""
        return {role: _token_text(token) for role, token in self.roles.items()}

    def add_missing_tokens_(self, tokenizer: Tokenizer) -> None:
        """Adds the tokens that the vocabulary lacks, or whose options differ, in the order of Transformers."""
        pending = [token for _, token in sorted(self.added.items())]
        known = {token.content for token in [*tokenizer.get_added_tokens_decoder().values(), *pending]}
        for token in [*self.roles.values(), *(self.extra or [])]:
            if _token_text(token) not in known:
                known.add(_token_text(token))
                pending.append(AddedToken(token, special=True) if isinstance(token, str) else token)
        special = set(self.special_tokens.values())
        for token in pending:
            token.special = token.special or token.content in special
        tokenizer.add_tokens(pending)


def read_tokenizer_settings(folder: Path, model_type: str) -> TokenizerSettings:
    """Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json and the chat template, those there are.

    Raises CheckpointError when one is damaged.
    """
    path = folder / "tokenizer_config.json"
    where = str(path)
    config = read_json_if_exists(path)
    class_name = _choose_tokenizer_class(folder, config, model_type)
    if (folder / "tokenizer.json").is_file():  # which has them in its template
        config = {key: value for key, value in config.items() if key not in ("add_bos_token", "add_eos_token")}
    if "additional_special_tokens" in config and not config.get("extra_special_tokens"):
        config["extra_special_tokens"] = config.pop("additional_special_tokens")
    named = {role: config[role] for role in ROLE_KEYS if role in config}
    extra = config.get("extra_special_tokens")
    added = {}
    if "added_tokens_decoder" in config:
        listed = config["added_tokens_decoder"]
        if not isinstance(listed, dict):
            raise tokenizer_error("added_tokens_decoder is not an object", where)
        added = {_parse_token_id(key, where): _parse_added_token_object(value, where) for key, value in listed.items()}
    else:
        path = folder / "special_tokens_map.json"
        for name, value in read_json_if_exists(path).items():
            if name in ROLE_KEYS:
                named[name] = (
                    _parse_added_token_object(value, str(path), special=True) if isinstance(value, dict) else value
                )
            elif name in ("additional_special_tokens", "extra_special_tokens") and extra is None:
                extra = value
        path = folder / "added_tokens.json"
        special = {_token_text(token) for token in (*named.values(), *_parse_token_list(extra, where))}
        for name, value in read_json_if_exists(path).items():
            token_id = _parse_token_id(value, str(path))
            added[token_id] = AddedToken(name, normalized=name not in special, special=name in special)
    with_options = {token.content: token for token in added.values()}
    roles: dict[str, AddedToken | str] = {}
    default_roles = TOKENIZER_CLASSES[class_name].get("roles", {})
    for role in ROLE_KEYS:
        if role not in named and role in default_roles:
            roles[role] = default_roles[role]
        elif named.get(role) is not None:
            token = _parse_token(named[role], where)
            roles[role] = with_options.get(_token_text(token), token)
    return TokenizerSettings(
        class_name=class_name,
        config=config,
        roles=roles,
        added=added,
        extra=None if extra is None else _parse_token_list(extra, where),
        chat_template=_read_chat_template(folder, config),
        where=where,
    )


def tokenizer_error(what: str, where: str) -> CheckpointError:
    """An error about a tokenizer or one of its files."""
    fix = "the file may be damaged: download it again, or see docs/serve.md for what can be imported"
    return import_error(f"this tokenizer cannot be imported: {what}", where, fix)


def _choose_tokenizer_class(folder: Path, config: Mapping[str, Any], model_type: str) -> str:
    """The class that Transformers' AutoTokenizer takes: the declared one, unless it is known to be wrong."""
    declared = config.get("tokenizer_class") or read_json_if_exists(folder / "config.json").get("tokenizer_class")
    registered = FAMILIES[model_type].tokenizer if model_type in FAMILIES else ""
    if not isinstance(declared, str):
        return registered or GENERIC
    name = declared.removesuffix("Fast")
    if registered == GENERIC or model_type == "qwen2":
        return registered
    if name == LLAMA and (folder / "tokenizer.json").is_file():
        return GENERIC if '"ByteLevel"' in read_text(folder / "tokenizer.json") else LLAMA
    return TOKENIZER_CLASSES[name].get("like", name) if name in TOKENIZER_CLASSES else GENERIC


def _parse_token_id(value: object, where: str) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < MAX_VOCAB_SIZE):
        raise tokenizer_error(f"{printable_repr(value)} is not the id of a token", where)
    return int(text)


def _parse_added_token_object(value: object, where: str, *, special: bool | None = None) -> AddedToken:
    """Parses an added token of a JSON file. special: overrides what the file says."""
    if not isinstance(value, dict) or not isinstance(value.get("content"), str) or not value["content"]:
        raise tokenizer_error(f"{printable_repr(value)} is not a token", where)
    options = {
        name: value[name] for name in ("single_word", "lstrip", "rstrip", "normalized", "special") if name in value
    }
    if special is not None:
        options["special"] = special
    if not all(isinstance(option, bool) for option in options.values()):
        raise tokenizer_error(f"{printable_repr(value)} is not a token", where)
    return AddedToken(value["content"], **options)


def _parse_token(value: object, where: str) -> AddedToken | str:
    if isinstance(value, AddedToken) or (isinstance(value, str) and value):
        return value
    return _parse_added_token_object(value, where)


def _parse_token_list(value: object, where: str) -> list[AddedToken | str]:
    if value is None:
        return []
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        raise tokenizer_error("the list of special tokens is not a list", where)
    return [_parse_token(token, where) for token in value]


def _token_text(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token.content if isinstance(token, AddedToken) else str(token)


def _read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Reads it from its own file, else from tokenizer_config.json; of several templates the one named "default"."""
    if (path := folder / "chat_template.jinja").is_file():
        return read_text(path)
    template = read_json_if_exists(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(template, list):
        defaults = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
        template = defaults[0].get("template") if defaults else None
    if not isinstance(template, str):
        return None
    if replace_surrogates(template) != template:
        raise tokenizer_error("the chat template has lone surrogates", str(folder))
    return template
