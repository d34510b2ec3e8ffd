"""Classify digits over gRPC, and compare with what JAX said.

It needs numpy, TensorFlow and tensorflow-serving-api.

    python examples/serving/grpc_client.py FOLDER/requests.npz [HOST:PORT]
"""

import sys

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

SECONDS = 60


def main() -> None:
    with np.load(sys.argv[1]) as requests:
        address = sys.argv[2] if len(sys.argv) > 2 else "localhost:8500"
        with grpc.insecure_channel(address) as channel:
            service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            response = service.Predict(build_request(requests["image"]), timeout=SECONDS)
        answers = read_response(response)
        print(f"version {response.model_spec.version.value}: {answers['label'].tolist()}")
        difference = np.abs(answers["probability"] - requests["probability"]).max()
    print(f"greatest difference from JAX: {difference:.1e}")


def build_request(image, model="digits"):
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = "serving_default"
    request.inputs["image"].CopyFrom(tf.make_tensor_proto(image))
    return request


def read_response(response):
    return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}


if __name__ == "__main__":
    main()
