"""Classify digits over REST, and compare with what JAX said.

Beside numpy it needs the standard library alone.

    python examples/serving/rest_client.py FOLDER/requests.npz [HOST:PORT]
"""

import json
import sys
import urllib.request

import numpy as np

SECONDS = 60


def main() -> None:
    with np.load(sys.argv[1]) as requests:
        address = sys.argv[2] if len(sys.argv) > 2 else "localhost:8501"
        request = build_request(requests["image"], address)
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            answers = read_response(reply.read())
        print(answers["label"].tolist())
        difference = np.abs(answers["probability"] - requests["probability"]).max()
    print(f"greatest difference from JAX: {difference:.1e}")


def build_request(image, address, model="digits"):
    body = {"signature_name": "serving_default", "inputs": {"image": image.tolist()}}
    url = f"http://{address}/v1/models/{model}:predict"
    return urllib.request.Request(url, json.dumps(body).encode(), method="POST")


def read_response(body):
    return {name: np.array(value) for name, value in json.loads(body)["outputs"].items()}


if __name__ == "__main__":
    main()
