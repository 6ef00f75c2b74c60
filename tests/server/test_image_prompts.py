"""Manifests of decoders that read images, and the memory of images in chats."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client.aio import AsyncClient
from client.errors import TriuneError
from client.types import Message
from export.errors import UnsupportedError
from export.sources import load_checkpoint
from export.supported import check_device_supported
from model.bundle import BundleError, Device, Precision
from model.bundle_files import read_manifest
from server.config import ServerConfig
from server.engine.observer import Unobserved
from server.models.registry import load_bundle
from server.models.workers import make_worker
from server.runtime.ort.backend import OrtBackend
from server.service.context import ServiceContext
from server.service.decoded_memory import DecodedMemory
from tests.pictures import picture
from tests.server.in_process_server import serving

Change = Callable[[dict[str, Any]], object]


def output_of(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["graphs"]["encode_images"]["outputs"][0]
    return found


DAMAGES: dict[str, tuple[Change, str]] = {
    "no prompt": (lambda m: m["image"].update(prompt=None), "decoders that read images have one"),
    "no image": (lambda m: m.update(image=None), "need"),
    "no graph": (lambda m: m["graphs"].pop("encode_images"), "does not take"),
    "size": (lambda m: m["image"].update(height=23), "encode_images does not take"),
    "token": (lambda m: m["image"]["prompt"].update(token=10**6), "is beyond"),
    "tokens": (lambda m: m["image"].update(num_tokens=8), "does not take the vectors"),
    "vectors": (lambda m: output_of(m).update(name="vectors"), "does not take the vectors"),
    "placeholder": (lambda m: m["image"]["prompt"].update(placeholder=""), "placeholder"),
    "tiles": (
        lambda m: m["image"].update(tiling={"longest_edge": 24, "splits": True}, resize=[24, 20]),
        "tiles must be square",
    ),
    "many tiles": (
        lambda m: m["image"].update(tiling={"longest_edge": 4096, "splits": True}),
        "tokens, at most",
    ),
}


@pytest.mark.parametrize(("change", "reason"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_manifests_are_refused(
    vision_models: Path, tmp_path: Path, change: Change, reason: str
) -> None:
    bundle = shutil.copytree(vision_models / "bundles" / "llava", tmp_path / "llava") / "1"
    manifest = json.loads((bundle / "bundle.json").read_text())
    change(manifest)
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=reason):
        read_manifest(bundle)


def test_devices_with_their_own_memory_are_refused(vision_models: Path) -> None:
    bundles = vision_models / "bundles"
    model = load_bundle(bundles / "llava" / "1", OrtBackend("cpu", 1), 256)
    config = ServerConfig(bundles=bundles, has_device_memory=True)
    with pytest.raises(BundleError, match="on CPUs only"):
        make_worker(model, model.replicas[0], config, Unobserved())
    source = load_checkpoint(str(vision_models / "sources" / "llava"))
    with pytest.raises(UnsupportedError, match="on CPUs only"):
        check_device_supported(source.config, Device.CUDA, Precision.FP16)


async def test_memory_of_images_is_reserved_until_the_call_ends(
    vision_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories: list[DecodedMemory] = []
    make = ServiceContext.__init__

    def recording(self: ServiceContext, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        memories.append(self.decoded_memory)

    monkeypatch.setattr(ServiceContext, "__init__", recording)
    messages = [Message("user", [picture(1), "What is it?"])]
    async with serving(vision_models / "bundles", max_length=256) as running:
        (memory,) = memories
        async with AsyncClient(f"127.0.0.1:{running.port}") as client:
            # More tokens than the answer's buffers hold: the stream stays open.
            stream = client.generate_stream("llava", messages=messages, ignore_eos=True)
            await anext(stream)
            assert memory.num_bytes == 24 * 24 * 3 + 9 * 64 * 4
            await stream.aclose()
            await client.generate("llava", messages=messages, max_new_tokens=2)
            bad: list[list[str | bytes]] = [[picture(1), picture(2)[:200]], [picture(1), "<image>"]]
            for content in bad:
                with pytest.raises(TriuneError):
                    await client.generate("llava", messages=[Message("user", content)])
    assert memory.num_bytes == 0
