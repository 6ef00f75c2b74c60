"""The committed stubs match the .proto files."""

from pathlib import Path

from scripts.generate_stubs import PACKAGES, ROOT, generate


def _stubs(root: Path) -> dict[str, str]:
    return {
        str(package / path.name): path.read_text()
        for package in PACKAGES
        for path in (root / package).iterdir()
        if "_pb2" in path.name
    }


def test_regenerated_stubs_equal_the_committed_ones(tmp_path: Path) -> None:
    generate(tmp_path)
    assert _stubs(tmp_path) == _stubs(ROOT)
    assert "protos/triune/v1/inference_pb2_grpc.pyi" in _stubs(ROOT)
