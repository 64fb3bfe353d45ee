"""The transports, each behind `fxforms.distributed.agent.RpcAgent`."""
