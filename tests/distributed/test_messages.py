"""Messages, commands and frames: what goes in comes out, and nothing else is taken."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from distributed import remote_functions as rf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fxforms.distributed import autograd_commands, commands, frame
from fxforms.distributed.agent import Origin
from fxforms.distributed.callback import respond
from fxforms.distributed.codec import MAX_PAYLOAD, pack, unpack
from fxforms.distributed.commands import COMMANDS, RpcCommandBase
from fxforms.distributed.message import Message, MessageType
from fxforms.distributed.requests import WorkerInfo
from fxforms.errors import MessageError

LIMIT = 1 << 20
SAMPLE, FULL = 300, 100_000

NUMBERS = {
    **dict(enumerate(("SCRIPT_CALL", "SCRIPT_RET", "PYTHON_CALL", "PYTHON_RET"))),
    4: "SCRIPT_REMOTE_CALL",
    5: "PYTHON_REMOTE_CALL",
    6: "REMOTE_RET",
    7: "SCRIPT_RREF_FETCH_CALL",
    8: "PYTHON_RREF_FETCH_CALL",
    9: "SCRIPT_RREF_FETCH_RET",
    10: "PYTHON_RREF_FETCH_RET",
    11: "RREF_USER_DELETE",
    12: "RREF_FORK_REQUEST",
    13: "RREF_CHILD_ACCEPT",
    14: "RREF_ACK",
    15: "FORWARD_AUTOGRAD_REQ",
    16: "FORWARD_AUTOGRAD_RESP",
    17: "BACKWARD_AUTOGRAD_REQ",
    18: "BACKWARD_AUTOGRAD_RESP",
    19: "CLEANUP_AUTOGRAD_CONTEXT_REQ",
    20: "CLEANUP_AUTOGRAD_CONTEXT_RESP",
    55: "EXCEPTION",
    60: "UNKNOWN",
}
RESPONSES = {1, 3, 6, 9, 10, 14, 16, 18, 20, 55}


def test_the_numbers_are_those_that_peers_agreed_on() -> None:
    assert {int(type): type.name for type in MessageType} == NUMBERS


@pytest.mark.parametrize("type", list(MessageType))
def test_a_message_is_a_request_or_a_response(type: MessageType) -> None:
    message = Message(b"", (), type)
    assert message.is_response == (type in RESPONSES)
    assert message.is_request == (type not in RESPONSES and type is not MessageType.UNKNOWN)
    assert (type in COMMANDS) == (type not in (MessageType.EXCEPTION, MessageType.UNKNOWN))


ids = st.integers(0, (1 << 64) - 1)
tensors = st.builds(
    lambda shape, dtype: (torch.arange(8.0)[: torch.Size(shape).numel()].reshape(shape)).to(dtype),
    st.lists(st.integers(0, 2), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int16]),
)
keys = st.one_of(st.text(max_size=3), st.integers(), st.tuples(st.integers(), st.booleans()))
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 100), 1 << 100),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.sampled_from([torch.float64, torch.strided, torch.preserve_format, torch.device("cpu", 1)]),
    st.just(torch.Size([1, 2])),
    st.builds(slice, st.integers(), st.none(), st.integers()),
    tensors,
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(rf.Point, inner, inner),
        st.builds(rf.Pair, inner, inner),
    ),
    max_leaves=8,
)
arguments = st.lists(values, max_size=3)
keywords = st.dictionaries(st.text(max_size=4), values, max_size=2)
calls = (st.text(max_size=9), arguments, keywords, st.just([True, 0]))
positions = st.lists(st.integers(0, 3), max_size=2)
wrapped = st.builds(
    lambda payload, request: Message(payload, (), MessageType(2 if request else 3)),
    st.binary(max_size=9),
    st.booleans(),
)
FIELDS: dict[type[RpcCommandBase], tuple[Any, ...]] = {
    commands.ScriptCall: calls,
    commands.PythonCall: calls,
    commands.ScriptRet: (values,),
    commands.PythonRet: (values,),
    commands.ScriptRemoteCall: (*calls, ids, ids),
    commands.PythonRemoteCall: (*calls, ids, ids),
    commands.RemoteRet: (ids, ids),
    commands.ScriptRRefFetchCall: (ids,),
    commands.PythonRRefFetchCall: (ids,),
    commands.ScriptRRefFetchRet: (values,),
    commands.PythonRRefFetchRet: (values,),
    commands.RRefUserDelete: (ids, ids),
    commands.RRefForkRequest: (ids, ids),
    commands.RRefChildAccept: (ids,),
    commands.RRefAck: (),
    autograd_commands.RpcWithAutograd: (wrapped, ids, ids, positions),
    autograd_commands.CleanupAutogradContextReq: (ids,),
    autograd_commands.CleanupAutogradContextResp: (),
}


def same(a: Any, b: Any) -> bool:
    """True if two values are the same, tensors by what they hold."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, Message):  # the id of one that is wrapped is that of its wrapper
        return same((a.payload, a.tensors, a.type), (b.payload, b.tensors, b.type))
    if isinstance(a, rf.Pair | RpcCommandBase):
        names = getattr(a, "__match_args__", ())
        return type(a) is type(b) and all(same(getattr(a, n), getattr(b, n)) for n in names)
    return type(a) is type(b) and a == b


def over_the_wire(message: Message) -> Message:
    return frame.decode(frame.encode(message), LIMIT)


@settings(max_examples=SAMPLE, deadline=None)
@given(values)
def test_values_survive(value: Any) -> None:
    payload, beside = pack(value)
    assert same(unpack(payload, beside), value)


@pytest.mark.parametrize("cls", FIELDS, ids=lambda cls: cls.__name__)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_commands_survive(cls: type[RpcCommandBase], data: st.DataObject) -> None:
    command = cls(*(data.draw(field) for field in FIELDS[cls]))  # type: ignore[call-arg]
    message = command.to_message()
    message.id = data.draw(ids)
    arrived = over_the_wire(message)
    assert (arrived.type, arrived.id) == (message.type, message.id)
    assert same(RpcCommandBase.from_message(arrived), command)
    assert same(cls.from_message(arrived), command)


def test_a_message_of_another_type_is_no_such_command() -> None:
    message = commands.RRefAck().to_message()
    with pytest.raises(MessageError, match="no ScriptCall"):
        commands.ScriptCall.from_message(message)
    with pytest.raises(MessageError, match="UNKNOWN"):
        RpcCommandBase.from_message(Message(b"", (), MessageType.UNKNOWN))


def test_what_is_too_large_or_too_deep() -> None:
    deep: Any = ()
    for _ in range(40):
        deep = (deep,)
    nested: Any = []
    for _ in range(2000):
        nested = [nested]
    for value in (deep, nested, b"x" * (MAX_PAYLOAD + 1), float, {1, 2}, "\ud800"):
        with pytest.raises(MessageError, match="sent"):
            pack(value)
    with pytest.raises(MessageError, match="larger"):
        frame.decode(frame.encode(Message(b"", (torch.zeros(LIMIT),), MessageType.RREF_ACK)), LIMIT)
    many = Message(b"", (torch.zeros(0),) * (frame.MAX_TENSORS + 1), MessageType.RREF_ACK)
    with pytest.raises(MessageError, match="at most"):
        frame.encode(many)


class Evil:
    """What unpickling would run."""

    def __reduce__(self) -> Any:
        return (rf.KEPT.append, ("ran",))


def test_nothing_is_unpickled() -> None:
    payload = pickle.dumps(Evil())
    before = list(rf.KEPT)
    for type in NUMBERS:
        answer(
            Message(
                payload,
                (torch.frombuffer(bytearray(payload), dtype=torch.uint8),),
                MessageType(type),
            )
        )
    assert before == rf.KEPT


def answer(message: Message) -> Message:
    """What a worker answers to ``message``."""
    agent: Any = None
    return respond(Origin(agent, WorkerInfo("peer", 1)), message)


def some_frame() -> bytes:
    x = torch.arange(6.0).reshape(2, 3)
    call = commands.PythonCall("no:such", [x, (1, {"a": x.bool()})], {"k": 2}, [True, 0])
    message = call.to_message()
    message.id = 5
    return frame.encode(message)


FRAME = some_frame()


def mutated(data: st.DataObject) -> bytes:
    """A frame with a few bytes changed, cut or put in; or bytes from nowhere."""
    if data.draw(st.booleans()):
        start = data.draw(st.sampled_from([b"", FRAME[:3], FRAME[:16], FRAME[:18]]))
        return start + data.draw(st.binary(max_size=60))
    raw = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    return bytes(raw)


def check_hostile(data: st.DataObject) -> None:
    """A frame from a stranger is refused, or answered; it neither crashes nor hangs."""
    try:
        message = frame.decode(mutated(data), LIMIT)
    except MessageError:
        return
    assert sum(tensor.nbytes for tensor in message.tensors) <= LIMIT
    response = answer(message)
    assert response.is_response
    assert response.id == message.id
    assert response.type is MessageType.EXCEPTION


def check_payload(data: st.DataObject) -> None:
    """A payload from a stranger in a proper message is an EXCEPTION, or a value."""
    type = data.draw(st.sampled_from(sorted(COMMANDS)))
    payload = data.draw(st.binary(max_size=80))
    response = answer(Message(payload, (torch.ones(1),), MessageType(type), 3))
    assert response.is_response
    assert response.id == 3


hostile = settings(max_examples=SAMPLE, deadline=None)
exhaustive = settings(
    max_examples=FULL // 2, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@hostile
@given(data=st.data())
def test_a_frame_from_a_stranger(data: st.DataObject) -> None:
    check_hostile(data)


@hostile
@given(data=st.data())
def test_a_payload_from_a_stranger(data: st.DataObject) -> None:
    check_payload(data)


@pytest.mark.full
@pytest.mark.timeout(3600)
@exhaustive
@given(data=st.data())
def test_many_frames_from_strangers(data: st.DataObject) -> None:
    check_hostile(data)


@pytest.mark.full
@pytest.mark.timeout(3600)
@exhaustive
@given(data=st.data())
def test_many_payloads_from_strangers(data: st.DataObject) -> None:
    check_payload(data)
