"""Options from a file, the environment and flags."""

import dataclasses
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from server.config import ServerConfig, TlsFiles
from server.flags import read_configuration
from server.options import SETTINGS
from server.settings import ConfigurationError, configure, from_environment, from_file, from_flags


def configured(tmp_path: Path, text: str = "", flags: Any = None, **environment: str) -> Any:
    file = tmp_path / "triune.toml"
    file.write_text(text, encoding="utf-8")
    (tmp_path / "bundles").mkdir(exist_ok=True)
    flags = {"bundles": str(tmp_path / "bundles"), **(flags or {})}
    return configure([from_file(file), from_environment(environment), from_flags(flags)])


def problems(tmp_path: Path, text: str = "", flags: Any = None, **environment: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        configured(tmp_path, text, flags, **environment)
    return [line.replace(str(tmp_path), "DIR") for line in caught.value.problems]


def test_flags_win_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    text = "max_queue = 1\nmax-length = 10\nslots = 4"
    found = configured(
        tmp_path, text, {"max_queue": "3"}, TRIUNE_MAX_QUEUE="2", TRIUNE_MAX_LENGTH="20"
    )
    assert (found.config.max_queue, found.config.max_length, found.config.num_slots) == (3, 20, 4)
    sources = {name: origin.source for name, origin in found.origins.items()}
    assert sources["max_queue"] == "--max-queue"
    assert sources["max_length"] == "TRIUNE_MAX_LENGTH"
    assert sources["slots"] == f"{tmp_path}/triune.toml: slots"
    assert sources["max_streams"] == "default"
    assert found.config.num_prefix_slots == 4


def test_every_problem_of_every_source_is_listed_with_its_origin(tmp_path: Path) -> None:
    listed = problems(
        tmp_path,
        'max_qeue = 1\nsampling = "gpu"\ncuda_graphs = "maybe"\n[serve]\nslots = 2',
        {
            "watch": "nan",
            "metrics": "x",
            "tls_cert": "c.pem",
            "device": "cuda,cpu",
            "frobnicate": "",
        },
        TRIUNE_SLOTS="many",
        TRIUNE_MAX_STREAMS="0",
        TRIUNE_SLOTZ="1",
    )
    assert sorted(listed) == [
        '--device is ["cuda", "cpu"]: devices \'cuda,cpu\' are of several kinds: a bundle is '
        "exported for one kind",
        "--frobnicate: unknown option",
        "--metrics is \"x\": address 'x' is not HOST:PORT with a port of at most 65535",
        "--tls-cert also needs --tls-key",
        "--watch is 'nan': not a finite number",
        "DIR/triune.toml: cuda_graphs is 'maybe': expected true or false",
        "DIR/triune.toml: max_qeue: unknown option; did you mean DIR/triune.toml: max_queue?",
        "DIR/triune.toml: sampling is 'gpu': expected one of auto, host, device",
        "DIR/triune.toml: serve: unknown option",
        "TRIUNE_MAX_STREAMS is '0': the minimum is 1",
        "TRIUNE_SLOTS is 'many': expected an integer",
        "TRIUNE_SLOTZ: unknown option; did you mean TRIUNE_SLOTS?",
    ]


def test_values_of_other_types_are_problems_too(tmp_path: Path) -> None:
    assert problems(tmp_path, 'sampling = ["host"]\nmemory_budget = -5') == [
        "DIR/triune.toml: sampling is ['host']: expected one of auto, host, device",
        "DIR/triune.toml: memory_budget is -5: '-5' is not a size such as 6GiB, 6G or 80%",
    ]


def test_an_option_in_both_spellings_is_refused(tmp_path: Path) -> None:
    assert problems(tmp_path, "max_queue = 1\nmax-queue = 7\nslots = 2") == [
        "DIR/triune.toml: max-queue: the option is given twice"
    ]


def test_an_unreadable_file_is_reported_with_the_other_problems(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("max_queue = ")
    with pytest.raises(ConfigurationError) as caught:
        read_configuration(tmp_path / "broken.toml", {"bundles": "/nowhere"}, {})
    first, second = caught.value.problems
    assert "broken.toml: Invalid value" in first
    assert second == '--bundles is "/nowhere": not a folder'


def test_variables_of_others_are_ignored_and_empty_ones_are_not_set(tmp_path: Path) -> None:
    found = configured(
        tmp_path,
        TRIUNE_TARGET="host:1",
        TRIUNE_DEBIAN_LISTS="lists",
        TRIUNE_PORT_50051_TCP_ADDR="10.0.0.1",
        TRIUNE_SERVICE_HOST="10.0.0.1",
        TRIUNE_SERVICE_PORT_GRPC="50051",
        TRIUNE_GATEWAY_SERVICE_HOST="10.0.0.2",
        TRIUNE_GATEWAY_SERVICE_PORT="50051",
        TRIUNE_GATEWAY_SERVICE_PORT_HTTP="8080",
        TRIUNE_GATEWAY_PORT="tcp://10.0.0.2:50051",
        TRIUNE_GATEWAY_PORT_8080_TCP_PROTO="tcp",
        TRIUNE_SLOTS="",
    )
    assert found.config.num_slots == 32


def test_values_have_their_types(tmp_path: Path) -> None:
    text = 'tls_cert = "c.pem"\ntls_key = "/k.pem"\ncuda_graphs = false\nwatch = 2\nadmin = "none"'
    config = configured(tmp_path, text, {"device": ["cuda:0,cuda:1"]}, TRIUNE_ADMIN="h:1").config
    # A relative path is relative to the folder of its file.
    assert config.tls == TlsFiles(certificate=tmp_path / "c.pem", key=Path("/k.pem"))
    assert (config.cuda_graphs, config.watch_seconds, config.admin) == (False, 2.0, "h:1")
    assert config.devices == ("cuda:0", "cuda:1")
    assert (config.num_prefix_slots, config.max_batched_tokens, config.num_lanes) == (0, 2048, 1)


def test_former_names_work_with_a_warning(tmp_path: Path) -> None:
    found = configured(tmp_path, TRIUNE_MAX_STEP_TOKENS="64")
    assert found.config.max_batched_tokens == 64
    assert found.warnings == (
        "TRIUNE_MAX_STEP_TOKENS is deprecated: use TRIUNE_MAX_BATCHED_TOKENS",
    )
    both = configured(tmp_path, "", {"max_step_tokens": "64", "max_batched_tokens": "32"})
    assert both.config.max_batched_tokens == 32


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"listen": "0.0.0.0:8080"}, '--http is "127.0.0.1:8080" by default: --listen'),
        ({"listen": "[::]:9464"}, '--metrics is "0.0.0.0:9464" by default: --listen'),
        (
            {"http": "localhost:81", "metrics": "localhost:81"},
            '--http is "localhost:81": --metrics',
        ),
        ({"listen": "unix:/tmp/a", "admin": "unix:/tmp/a"}, '--admin is "unix:/tmp/a": --listen'),
    ],
)
def test_each_address_is_for_one_purpose(
    tmp_path: Path, flags: dict[str, str], expected: str
) -> None:
    assert problems(tmp_path, "", flags) == [f"{expected} has this address too"]


@pytest.mark.parametrize(
    "flags",
    [
        {"listen": "0.0.0.0:0", "metrics": "0.0.0.0:0", "http": "0.0.0.0:0"},
        {"listen": "127.0.0.1:80", "http": "127.0.0.2:80"},
        {"listen": "127.0.0.1:8080", "http": "none"},
        {"listen": "unix:/tmp/a", "admin": "unix:/tmp/b"},
    ],
)
def test_addresses_that_differ_are_allowed(tmp_path: Path, flags: dict[str, str]) -> None:
    assert configured(tmp_path, "", flags).config.listen == flags["listen"]


def test_options_without_effect_are_warned_of(tmp_path: Path) -> None:
    text = 'http = "none"\ntei_model = "minilm"\nadmin_tokens = "t.txt"\nadmin = "none"'
    found = configured(tmp_path, text, {"client_burst_tokens": "5"})
    assert found.warnings == (
        f"{tmp_path}/triune.toml: admin_tokens has no effect without --admin",
        "--client-burst-tokens has no effect without --client-tokens-per-second",
        f"{tmp_path}/triune.toml: tei_model has no effect without --http",
    )
    flags = {"client_burst_tokens": "5", "client_tokens_per_second": "1", "tei_model": "minilm"}
    assert configured(tmp_path, "", flags).warnings == ()


def test_the_report_is_a_file_with_the_same_effect(tmp_path: Path) -> None:
    found = configured(tmp_path, 'device = "cpu"\nstall_seconds = 5', {"slots": "3"})
    report = found.report()
    assert "slots = 3" in report
    hidden = {name for name, setting in SETTINGS.items() if setting.option.hidden}
    assert hidden
    assert tomllib.loads(report).keys() == SETTINGS.keys() - hidden
    again = configured(tmp_path, report)
    assert again.config == found.config


def test_the_report_has_a_hidden_option_that_is_set(tmp_path: Path) -> None:
    report = configured(tmp_path, "max_padded_tokens = 64").report()
    assert tomllib.loads(report)["max_padded_tokens"] == 64
    assert "device_memory" not in report


def test_every_option_sets_a_field_and_every_field_with_a_default_agrees() -> None:
    names = {field.name for field in dataclasses.fields(ServerConfig)}
    assert {setting.path[0] for setting in SETTINGS.values()} <= names
    assert len({setting.path for setting in SETTINGS.values()}) == len(SETTINGS)


def test_check_prints_what_is_in_force_and_exits(tmp_path: Path) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "triune.toml").write_text("max_queue = 7\n")
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TRIUNE_SLOTS": "8"}
    command = [sys.executable, "-m", "server", "--check", "--max-length=99", "--no-cuda-graphs"]
    completed = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    lines = {line.split()[0]: line.split() for line in completed.stdout.splitlines()}
    assert lines["max_queue"][2:] == ["7", "#", "triune.toml:", "max_queue"]
    assert lines["slots"][2:] == ["8", "#", "TRIUNE_SLOTS"]
    assert lines["max_length"][2:] == ["99", "#", "--max-length"]
    assert lines["cuda_graphs"][2:] == ["false", "#", "--cuda-graphs"]
    assert "options from triune.toml" in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--tls_client_ca", "ca.pem"], "--tls_client_ca: unknown option; did you mean"),
        (["-tokens", "tokens.txt"], "-tokens: unknown option; did you mean --tokens?"),
        (["tokens"], "'tokens': unknown option; did you mean --tokens?"),
    ],
)
def test_arguments_that_resemble_an_option_do_not_switch_it_off(
    tmp_path: Path, arguments: list[str], problem: str
) -> None:
    command = [sys.executable, "-m", "server", "--check", "--bundles", str(tmp_path), *arguments]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 2
    assert problem in completed.stderr
