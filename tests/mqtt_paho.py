"""Clients of paho against a broker: `mqtt_paho.py MQTT_PORT HTTP_PORT`. Ends with 1 and says why where something is not as it should be."""

import queue
import sys
import urllib.request

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PATIENCE = 30


def client(version, transport, port, name, clean):
    """A client that is connected, and the queue of what it hears."""
    flags = {"clean_session": clean} if version == mqtt.MQTTv311 else {}
    c = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=version, transport=transport, **flags)
    if transport == "websockets":
        c.ws_set_options(path="/mqtt")
    heard, ready = queue.Queue(), queue.Queue()
    c.on_connect = lambda _c, _u, flags, reason, _p: ready.put((reason.value, flags.session_present))
    c.on_subscribe = lambda _c, _u, _m, reasons, _p: ready.put([r.value for r in reasons])
    c.on_message = lambda _c, _u, m: heard.put(m)
    more = {}
    if version == mqtt.MQTTv5:
        more["clean_start"] = clean
        more["properties"] = Properties(PacketTypes.CONNECT)
        more["properties"].SessionExpiryInterval = 0 if clean else 60
    c.connect("127.0.0.1", port, **more)
    c.loop_start()
    return c, heard, ready


def post(port, topic, text):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/pub/{topic}", data=text.encode(), method="POST")
    return urllib.request.urlopen(request, timeout=PATIENCE).status


def check(version, transport, port, http):
    topic = f"paho/{version}/{transport}"
    c, heard, ready = client(version, transport, port, topic, False)
    assert ready.get(timeout=PATIENCE) == (0, False), "a new session"
    c.subscribe(topic, qos=1)
    assert ready.get(timeout=PATIENCE) == [1]
    assert post(http, topic, "by HTTP") == 201
    assert heard.get(timeout=PATIENCE).payload == b"by HTTP"
    properties = None
    if version == mqtt.MQTTv5:
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("a", "b"), ("a", "c")]
        properties.ResponseTopic = "answer/here"
        properties.CorrelationData = b"\xff\x00"
        properties.ContentType = "text/x"
        properties.MessageExpiryInterval = 100
    for n in range(300):
        c.publish(topic, f"m{n}".encode(), qos=1, properties=properties).wait_for_publish(PATIENCE)
    for n in range(300):
        m = heard.get(timeout=PATIENCE)
        assert (m.payload, m.qos) == (f"m{n}".encode(), 1), m.payload
        if version == mqtt.MQTTv5:
            p = m.properties
            assert p.UserProperty == [("a", "b"), ("a", "c")] and p.ResponseTopic == "answer/here", p
            assert p.CorrelationData == b"\xff\x00" and p.ContentType == "text/x", p
            assert 90 <= p.MessageExpiryInterval <= 100, p
    large = bytes(range(256)) * 2000
    c.publish(topic, large, qos=0)
    assert heard.get(timeout=PATIENCE).payload == large
    c.disconnect()
    c.loop_stop()
    assert post(http, topic, "while away") == 201
    c, heard, ready = client(version, transport, port, topic, False)
    assert ready.get(timeout=PATIENCE) == (0, True), "the session is there"
    assert heard.get(timeout=PATIENCE).payload == b"while away"
    c.disconnect()
    c.loop_stop()


def main():
    port, http = int(sys.argv[1]), int(sys.argv[2])
    for version in (mqtt.MQTTv311, mqtt.MQTTv5):
        check(version, "tcp", port, http)
        check(version, "websockets", http, http)


main()
