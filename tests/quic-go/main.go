// Asks for one address again and again over HTTP/3 (quic-go) or HTTP/2 (Go's own), and says as JSON what came: the client
// of tests/http3_clients.rs, and of perf/http3.py, which needs the same load over both protocols. With -serve it is a server, for
// tests/http3_upstream.rs: it says its port, then answers.
package main

import (
	"context"
	"crypto/md5"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// Windows of a client that never holds the server back.
const window = 16 << 20

var digests bool

type outcome struct {
	Protocol string `json:"protocol"`
	Requests int64  `json:"requests"`
	Bytes    int64  `json:"bytes"`
	Errors   int64  `json:"errors"`
	Error    string `json:"error,omitempty"`
	// Of the first answer.
	Status int    `json:"status"`
	MD5    string `json:"md5,omitempty"`
}

func main() {
	protocol := flag.String("protocol", "h3", "h3 or h2")
	connections := flag.Int("connections", 1, "connections")
	streams := flag.Int("streams", 1, "requests under way at once on each")
	requests := flag.Int64("requests", 1, "requests in all; 0: no end but -for")
	duration := flag.Duration("for", 0, "stop after so long")
	flag.BoolVar(&digests, "md5", false, "take the digest of bodies")
	serves := flag.Bool("serve", false, "be a server")
	cert := flag.String("cert", "", "a server's certificate, PEM")
	key := flag.String("key", "", "its key")
	flag.Parse()
	if *serves {
		fmt.Fprintln(os.Stderr, serve(*cert, *key))
		os.Exit(1)
	}
	out, err := json.Marshal(run(flag.Arg(0), *protocol, *connections, *streams, *requests, *duration))
	if err != nil {
		panic(err)
	}
	fmt.Println(string(out))
}

func run(url, protocol string, connections, streams int, requests int64, duration time.Duration) outcome {
	ctx := context.Background()
	if duration > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, duration)
		defer cancel()
	}
	if requests == 0 {
		requests = 1 << 62
	}
	var done outcome
	var begun atomic.Int64
	var lock sync.Mutex
	var workers sync.WaitGroup
	for range connections {
		transport := transport(protocol)
		for range streams {
			workers.Go(func() {
				for begun.Add(1) <= requests {
					answer, err := get(ctx, transport, url)
					if ctx.Err() != nil {
						return
					}
					lock.Lock()
					done.add(answer, err)
					lock.Unlock()
				}
			})
		}
	}
	workers.Wait()
	return done
}

func serve(cert, key string) error {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	fmt.Println(socket.LocalAddr().(*net.UDPAddr).Port)
	config := http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}})
	server := &http3.Server{TLSConfig: config, Handler: http.HandlerFunc(answer)}
	return server.Serve(socket)
}

// What was asked, or with /echo the body; /cut promises more than it sends.
func answer(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/echo"):
		io.Copy(w, r.Body)
	case r.URL.Path == "/cut":
		w.Header().Set("Content-Length", "100000")
		w.Write(make([]byte, 50000))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	default:
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.RequestURI(), r.Proto)
	}
}

// What is not verified here is a certificate that signed itself.
func transport(protocol string) http.RoundTripper {
	config := &tls.Config{InsecureSkipVerify: true}
	switch protocol {
	case "h3":
		windows := &quic.Config{
			InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window,
			InitialConnectionReceiveWindow: window, MaxConnectionReceiveWindow: window,
		}
		return &http3.Transport{TLSClientConfig: config, QUICConfig: windows, DisableCompression: true}
	case "h2":
		http2 := &http.HTTP2Config{MaxReceiveBufferPerConnection: window, MaxReceiveBufferPerStream: window}
		protocols := new(http.Protocols)
		protocols.SetHTTP2(true)
		return &http.Transport{TLSClientConfig: config, HTTP2: http2, Protocols: protocols, DisableCompression: true}
	}
	fmt.Fprintln(os.Stderr, "no such protocol:", protocol)
	os.Exit(2)
	return nil
}

func get(ctx context.Context, transport http.RoundTripper, url string) (outcome, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return outcome{}, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return outcome{}, err
	}
	defer response.Body.Close()
	answer := outcome{Protocol: response.Proto, Status: response.StatusCode}
	if !digests {
		answer.Bytes, err = io.Copy(io.Discard, response.Body)
		return answer, err
	}
	digest := md5.New()
	answer.Bytes, err = io.Copy(digest, response.Body)
	answer.MD5 = fmt.Sprintf("%x", digest.Sum(nil))
	return answer, err
}

func (o *outcome) add(answer outcome, err error) {
	if err != nil {
		o.Errors++
		o.Error = err.Error()
		return
	}
	if o.Requests == 0 {
		o.Protocol, o.Status, o.MD5 = answer.Protocol, answer.Status, answer.MD5
	}
	o.Requests++
	o.Bytes += answer.Bytes
}
