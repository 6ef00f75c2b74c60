"""The committed stubs match the .proto files."""

from pathlib import Path

from scripts.generate_stubs import PACKAGE, ROOT, generate


def test_regenerated_stubs_equal_the_committed_ones(tmp_path: Path) -> None:
    generate(tmp_path)
    generated = {path.name: path.read_text() for path in (tmp_path / PACKAGE).iterdir()}
    committed = {
        path.name: path.read_text() for path in (ROOT / PACKAGE).iterdir() if "_pb2" in path.name
    }
    assert generated == committed
    assert "inference_pb2_grpc.pyi" in generated
