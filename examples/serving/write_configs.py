"""Write the configuration of the server in the container: `configs/` beside this file.

In the container the models are below /models, so the paths are others than those that
`bridge.serving.publish` writes beside the versions.

    python examples/serving/write_configs.py [FOLDER]
"""

import sys
from pathlib import Path

from bridge.serving import Batching, ModelConfig, write_configs


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("configs")
    write_configs(
        folder,
        [ModelConfig("digits", "/models/digits")],
        batching=Batching(
            allowed_batch_sizes=(1, 8, 32), batch_timeout_micros=2000, num_batch_threads=2
        ),
        platforms=["cpu", "cuda"],
    )


if __name__ == "__main__":
    main()
