"""The type of the context that gRPC passes to each handler."""

from typing import Any

import grpc.aio

Context = grpc.aio.ServicerContext[Any, Any]
