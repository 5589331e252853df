"""A site of one file for `cgi_upstreams.rs`: sessions, forms, an upload, an answer in pieces."""
import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

settings.configure(
    SECRET_KEY="of a test",
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["localhost"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
    ],
)
django.setup()


def count(request):
    request.session["visits"] = request.session.get("visits", 0) + 1
    return HttpResponse(f"{request.session['visits']} of {request.get_host()}")


@csrf_exempt
def upload(request):
    file = request.FILES["file"]
    return HttpResponse(f"{file.name} {file.size}")


def pieces(request):
    return StreamingHttpResponse("0123456789" * 100 for _ in range(200))


urlpatterns = [path("count/", count), path("upload/", upload), path("pieces/", pieces)]
application = get_wsgi_application()
