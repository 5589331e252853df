"""An OTLP receiver of gRPC's and OpenTelemetry's own code: prints its port, then a line of JSON for each span that arrives."""
import concurrent.futures
import json

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        for of_resource in request.resource_spans:
            resource = {a.key: a.value.string_value for a in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    print(json.dumps({"resource": resource, "id": span.trace_id.hex(), **MessageToDict(span)}), flush=True)
        return trace_service_pb2.ExportTraceServiceResponse()


server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=2))
trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Receiver(), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
