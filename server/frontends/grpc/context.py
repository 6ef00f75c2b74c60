"""The type of gRPC's call contexts."""

from typing import Any

import grpc.aio

Context = grpc.aio.ServicerContext[Any, Any]
