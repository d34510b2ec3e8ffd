"""The command `jax-tf-bridge serve`: a server on this machine, for trying what `publish` wrote.

It answers as TensorFlow Serving does, over REST and gRPC, with TensorFlow's own session loader, and
it compiles nothing unless it is told to. `servable.py` is one loaded version, and `versions.py`
the newest one below a folder that is looked at again and again. `service.py` answers the messages
of Serving (`bridge/serving/messages.py`): gRPC hands them over as they are, and for REST
`json_format.py` makes messages of JSON and JSON of messages, as
tensorflow_serving/util/json_tensor.cc does, refusals included. `rest.py` and `server.py` listen.

To add a method, add its messages there, answer them in `service.py`, and list it in `METHODS`.
"""
