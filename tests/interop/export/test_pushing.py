"""`lmtool push` against a stand-in for the Hub on the loopback interface, which can break off before the commit."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lmtool.interop.resolve import resolve_reference
from lmtool.runs.load import load_run
from tests.interop.runs import SMALL, made, recipe_of, tokenizer_of

pytestmark = pytest.mark.system

NAME = "ada/stories"
TOKEN = "hf_of-ada"


class Hub(ThreadingHTTPServer):
    """Repositories of models, as far as `create_repo` and `upload_folder` of huggingface_hub ask for them.

    dies: the number of commits whose connection is closed without an answer.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self.created: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.uploads, self.commits, self.dies = 0, 0, 0


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: Any) -> None:
        pass

    def answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        known = self.server.created.get(NAME, {})
        private = known.get("visibility") == "private" or bool(known.get("private"))
        self.answer({"id": NAME, "private": private, "siblings": []}, 200 if known else 404)

    def do_PUT(self) -> None:
        content, hub = self.read_body(), self.server
        hub.objects[hashlib.sha256(content).hexdigest()] = content
        hub.uploads += 1
        self.answer({})

    def do_POST(self) -> None:
        body, hub, path = self.read_body(), self.server, self.path.partition("?")[0]
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization', 'ada')}/{asked['name']}"
            exists = hub.created.setdefault(name, asked) is not asked
            self.answer({"url": f"{hub.address}/{name}"}, 409 if exists else 200)
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif path == f"/api/models/{NAME}/preupload/main":
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in paths}
            files = [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]
            self.answer({"files": files})
        elif path == f"/{NAME}.git/info/lfs/objects/batch":
            objects = []
            for one in json.loads(body)["objects"]:
                sending = {"actions": {"upload": {"href": f"{hub.address}/upload/{one['oid']}"}}}
                objects.append(one | ({} if one["oid"] in hub.objects else sending))
            self.answer({"transfer": "basic", "objects": objects})
        elif path == f"/api/models/{NAME}/commit/main":
            if hub.dies:
                hub.dies -= 1
                self.close_connection = True
                return
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.objects[value["oid"]]
            hub.commits += 1
            self.answer({"commitUrl": f"{hub.address}/{NAME}/commit/1", "commitOid": "1" * 40})
        else:
            self.answer({"error": path}, 404)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = recipe_of({**SMALL, "activation": "gelu-tanh"}, {"kind": "causal"}, data={"split": "document"})
    return made(tmp_path_factory.mktemp("runs") / "stories", recipe, tokenizer_of("bpe"))


def push(hub: Hub, home: Path, *arguments: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"HF_ENDPOINT": hub.address, "HF_TOKEN": token, "HF_HOME": str(home)}
    env |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "lmtool", "push", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_what_was_pushed_is_the_model(hub: Hub, run: Path, tmp_path: Path) -> None:
    pushed = push(hub, tmp_path, str(run), NAME, "--private")
    assert (pushed.returncode, pushed.stdout.strip()) == (0, f"{hub.address}/{NAME}/commit/1"), pushed.stderr
    assert hub.created[NAME].get("visibility") == "private" or hub.created[NAME].get("private")
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= hub.files.keys()
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name, content in hub.files.items():
        (folder / name).write_bytes(content)
    published, original = load_run(resolve_reference(str(folder))), load_run(str(run))
    assert all(a.equal(b) for a, b in zip(published.model.parameters(), original.model.parameters(), strict=True))


def test_a_push_that_breaks_off_changes_nothing_and_goes_on(hub: Hub, run: Path, tmp_path: Path) -> None:
    hub.dies = 1
    broken = push(hub, tmp_path, str(run), NAME, "-q")
    assert (broken.returncode, hub.files, hub.uploads) == (5, {}, 1), broken.stderr
    assert "push again" in broken.stderr
    assert len(broken.stderr.strip().splitlines()) == 3
    pushed = push(hub, tmp_path, str(run), NAME)
    assert (pushed.returncode, hub.commits, hub.uploads) == (0, 1, 1), pushed.stderr
    assert hub.files["model.safetensors"] in hub.objects.values()


def test_a_private_push_to_a_public_repository_is_refused(hub: Hub, run: Path, tmp_path: Path) -> None:
    pushed = push(hub, tmp_path, str(run), NAME)
    assert pushed.returncode == 0
    assert f"exporting, and uploading to {NAME}" in pushed.stderr
    refused = push(hub, tmp_path, str(run), NAME, "--private")
    assert (refused.returncode, hub.commits) == (2, 1), refused.stderr
    assert refused.stderr.startswith("--private is for a new repository"), "nothing is said before"


def test_a_push_is_refused_before_anything_is_sent(hub: Hub, run: Path, tmp_path: Path) -> None:
    refused = push(hub, tmp_path, str(run), NAME, token="hf_of-another")
    assert refused.returncode == 5
    assert refused.stderr.startswith("cannot push to the Hub"), "nothing is said before"
    assert "hf auth login" in refused.stderr
    assert push(hub, tmp_path, str(run), "stories").returncode == 2
    assert push(hub, tmp_path, str(run), "ada//stories").returncode == 2
    assert (hub.uploads, hub.commits) == (0, 0)
