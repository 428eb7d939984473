"""The parts of the feed of pods and nodes that need no server."""

import subprocess
import sys


def test_the_feed_is_public_and_loads_no_client_until_it_is_used() -> None:
    code = "import sys, trimaran_client; trimaran_client.ClusterFeed; sys.exit(bool({'kubernetes_asyncio', 'aiohttp'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
