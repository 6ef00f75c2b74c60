"""fp32 graphs of small random models, exported once for this folder's tests."""

import pytest

from tests.export.exported import NAMES, Exported, export_fp32


@pytest.fixture(scope="session")
def exports() -> dict[str, Exported]:
    return {}


@pytest.fixture(params=NAMES)
def exported(
    request: pytest.FixtureRequest,
    exports: dict[str, Exported],
    tmp_path_factory: pytest.TempPathFactory,
) -> Exported:
    name = request.param
    if name not in exports:
        exports[name] = export_fp32(name, tmp_path_factory.mktemp(name))
    return exports[name]
