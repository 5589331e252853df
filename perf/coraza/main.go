// A server in Go whose requests Coraza judges, for perf/waf.py: files, and a backend that requests are passed to. With -rules "" nobody judges.
package main

import (
	"flag"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"

	"github.com/corazawaf/coraza/v3"
	corazahttp "github.com/corazawaf/coraza/v3/http"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8080", "address and port")
	root := flag.String("root", ".", "folder of the files")
	backend := flag.String("backend", "127.0.0.1:8081", "where /app/ goes")
	rules := flag.String("rules", "", "file with rules")
	flag.Parse()
	// It is given one CPU, as the others are.
	runtime.GOMAXPROCS(1)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 128
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: *backend})
	proxy.Transport = transport
	mux := http.NewServeMux()
	mux.Handle("/app/", proxy)
	mux.Handle("/", http.FileServer(http.Dir(*root)))
	var handler http.Handler = mux
	if *rules != "" {
		waf, err := coraza.NewWAF(coraza.NewWAFConfig().WithDirectivesFromFile(*rules))
		if err != nil {
			log.Fatal(err)
		}
		handler = corazahttp.WrapHandler(waf, mux)
	}
	log.Fatal(http.ListenAndServe(*listen, handler))
}
