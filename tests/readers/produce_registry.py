"""Writes records with Confluent's own serializers and a schema registry.

  produce_registry.py BROKERS REGISTRY FORMAT TOPIC FIRST COUNT VERSION

Record n has the id "e<n>", the number n * 10^12, a time and, from VERSION 2 of
its schema on, a note. FORMAT is avro, protobuf or jsonSchema; avro refers to a
schema of another subject.
"""

import sys
from datetime import datetime, timedelta, timezone

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

brokers, registry, form, topic = sys.argv[1:5]
first, count, version = (int(a) for a in sys.argv[5:8])
client = SchemaRegistryClient({"url": registry})
start = datetime(2026, 11, 30, tzinfo=timezone.utc)


def avro():
    client.register_schema("user", Schema('{"type":"record","name":"User","namespace":"wiki","fields":[{"name":"name","type":"string"}]}', "AVRO"))
    note = ',{"name":"note","type":["null","string"],"default":null}' if version > 1 else ""
    schema = Schema(
        '{"type":"record","name":"Edit","namespace":"wiki","fields":[{"name":"id","type":"string"},{"name":"user","type":"wiki.User"},'
        '{"name":"big","type":"long"},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}}' + note + "]}",
        "AVRO",
        [SchemaReference("wiki.User", "user", 1)],
    )
    return AvroSerializer(client, schema)


def json_schema():
    properties = '"id":{"type":"string"},"user":{"type":"object"},"big":{"type":"integer"},"at":{"type":"string"}'
    if version > 1:
        properties += ',"note":{"type":"string"}'
    return JSONSerializer('{"title":"Edit","type":"object","properties":{%s},"required":["id"]}' % properties, client)


def protobuf_class():
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name="edit.proto", package="wiki", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    kinds = descriptor_pb2.FieldDescriptorProto
    user = file.message_type.add(name="User")
    user.field.add(name="name", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    edit = file.message_type.add(name="Edit")
    for number, (name, kind, of) in enumerate(
        [("id", kinds.TYPE_STRING, None), ("user", kinds.TYPE_MESSAGE, ".wiki.User"), ("big", kinds.TYPE_INT64, None),
         ("at", kinds.TYPE_MESSAGE, ".google.protobuf.Timestamp")] + ([("note", kinds.TYPE_STRING, None)] if version > 1 else []), 1):
        edit.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL, type_name=of)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("wiki.Edit"))


if form == "protobuf":
    Edit = protobuf_class()
    serialize = ProtobufSerializer(Edit, client, {"use.deprecated.format": False})
else:
    serialize = {"avro": avro, "jsonSchema": json_schema}[form]()


def value(n):
    at = start + timedelta(seconds=n)
    fields = {"id": f"e{n}", "user": {"name": f"u{n % 7}"}, "big": n * 10**12, "at": at}
    if version > 1:
        fields["note"] = f"note {n}"
    if form == "protobuf":
        edit = Edit(id=fields["id"], big=fields["big"], **({"note": fields["note"]} if version > 1 else {}))
        edit.user.name = fields["user"]["name"]
        edit.at.FromDatetime(at)
        return edit
    if form == "jsonSchema":
        fields["at"] = at.isoformat().replace("+00:00", "Z")
    return fields


producer = Producer({"bootstrap.servers": brokers, "acks": "all"})
failed = []
for n in range(first, first + count):
    producer.produce(topic, serialize(value(n), SerializationContext(topic, MessageField.VALUE)),
                     on_delivery=lambda err, _: failed.append(err) if err else None)
    producer.poll(0)
producer.flush()
sys.exit(f"{len(failed)} records were not taken: {failed[0]}" if failed else 0)
