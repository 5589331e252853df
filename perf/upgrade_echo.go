// The echoes of perf/upgrade_many.py: an upstream that gives back what it is given, and WebSocket clients over TLS that each send their next number once a
// second and want it back. In Go, so that both ends leave the CPUs of a small machine to the server.
//
//	upgrade_echo serve PORT
//	upgrade_echo clients COUNT PORT    says "open COUNT", and at SIGUSR1 in a line of JSON what came of it
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	switching = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
	request   = "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	// Handshakes that are under way at once, and how long the last echoes may take when it is over.
	atOnce   = 50
	patience = 10 * time.Second
)

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		serve(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "clients":
		count, err := strconv.Atoi(os.Args[2])
		if err != nil {
			log.Fatal(err)
		}
		clients(count, os.Args[3])
	default:
		log.Fatal("usage: upgrade_echo serve PORT | upgrade_echo clients COUNT PORT")
	}
}

// serve switches protocols whatever it is asked, and gives back each byte.
func serve(port string) {
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer connection.Close()
			reader := bufio.NewReaderSize(connection, 4096)
			if _, err := http.ReadRequest(reader); err != nil {
				return
			}
			if _, err := io.WriteString(connection, switching); err != nil {
				return
			}
			// The reader's own bytes, and not the kernel's splice.
			io.Copy(struct{ io.Writer }{connection}, struct{ io.Reader }{reader})
		}()
	}
}

// facts are what came of all clients, and how many are talking still.
type facts struct {
	ended, wrong, echoes, slowest, talking atomic.Int64
}

func clients(count int, port string) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGUSR1)
	all := make([]*tls.Conn, count)
	places := make(chan struct{}, atOnce)
	var opened sync.WaitGroup
	for number := range all {
		places <- struct{}{}
		opened.Go(func() {
			all[number] = open(port)
			<-places
		})
	}
	opened.Wait()
	fmt.Println("open", count)
	var found facts
	var talking sync.WaitGroup
	over := make(chan struct{})
	for number, connection := range all {
		offset := time.Second * time.Duration(number) / time.Duration(count)
		talking.Go(func() { talk(connection, offset, over, &found) })
	}
	<-told
	close(over)
	finished := make(chan struct{})
	go func() { talking.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(patience):
	}
	found.say()
}

func open(port string) *tls.Conn {
	configuration := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	connection, err := tls.Dial("tcp", "127.0.0.1:"+port, configuration)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := io.WriteString(connection, request); err != nil {
		log.Fatal(err)
	}
	var head []byte
	for one := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, one...) {
		if _, err := io.ReadFull(connection, one); err != nil {
			log.Fatal(err)
		}
	}
	if !strings.Contains(string(head), " 101 ") {
		log.Fatalf("%q", head)
	}
	return connection
}

// talk sends numbers from `offset` on, until it is over.
func talk(connection *tls.Conn, offset time.Duration, over chan struct{}, found *facts) {
	found.talking.Add(1)
	defer found.talking.Add(-1)
	pause := time.NewTimer(offset)
	frame, back := make([]byte, 14), make([]byte, 14)
	// A binary message of 8 bytes, under a mask of zeros.
	frame[0], frame[1] = 0x82, 0x88
	for number := uint64(0); ; number++ {
		select {
		case <-over:
			return
		case <-pause.C:
		}
		began := time.Now()
		binary.LittleEndian.PutUint64(frame[6:], number)
		if _, err := connection.Write(frame); err != nil {
			found.ended.Add(1)
			return
		}
		if _, err := io.ReadFull(connection, back); err != nil {
			found.ended.Add(1)
			return
		}
		if !bytes.Equal(frame, back) {
			found.wrong.Add(1)
		}
		found.echoes.Add(1)
		took := time.Since(began).Nanoseconds()
		for before := found.slowest.Load(); took > before && !found.slowest.CompareAndSwap(before, took); before = found.slowest.Load() {
		}
		pause.Reset(time.Second)
	}
}

func (found *facts) say() {
	text, err := json.Marshal(map[string]any{"ended": found.ended.Load(), "wrong": found.wrong.Load(), "echoes": found.echoes.Load(),
		"slowest_s": float64(found.slowest.Load()/1e6) / 1e3, "silent": found.talking.Load()})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text))
}
