"""Runs to serve, each made once."""

from collections.abc import Iterator

import openai
import pytest

from lmtool.interop.importing import import_to_cache
from tests.generation import talkers
from tests.serving.harness import Served, served
from tests.support.training import Work


@pytest.fixture(scope="session")
def talker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The run of a published model with a chat template."""
    return str(import_to_cache(str(talkers.publish(tmp_path_factory.mktemp("published") / "talker"))))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Work:
    return Work(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def classifier(folder: Work) -> str:
    """A run that was fine-tuned on classes."""
    folder.pretrain(name="base")
    folder.finetune(source=folder.run("base"), name="classifier")
    return str(folder.run("classifier"))


@pytest.fixture(scope="module")
def server(talker: str) -> Iterator[Served]:
    with served(talker) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with server.client() as found:
        yield found


@pytest.fixture(scope="module")
def name(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id
