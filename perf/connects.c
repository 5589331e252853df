/*
 * Opens connections at a rate, whatever becomes of them (open loop), and says how long each took to connect.
 *
 *   connects HOST PORT RATE SECONDS FROM TO [SOURCE ...]
 *
 * One thread. A connection is due at its time after the start, and how long it took is counted from there, so that lateness of this
 * program counts too. What the server says is read until it ends the connection. FROM and TO are ms after the start: those due
 * between them are counted apart. A line "begun" when the first is due; at the end one of JSON.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* After the last was due those that are under way are waited for so long, ms; then they count as this long. */
#define LAST_WAIT_MS 8000
#define SOURCES_MAX 64
#define EVENTS 512
#define SLOW_NS 1000000000ull

struct one {
	unsigned long long due;
	int in_window, connected;
};

struct counts {
	unsigned long due, connected, slow, failed;
};

static unsigned long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;

	return (x > y) - (x < y);
}

static void print_counts(const char *name, const struct counts *c)
{
	printf("\"%s\": {\"due\": %lu, \"connected\": %lu, \"slow\": %lu, \"failed\": %lu}, ", name, c->due, c->connected, c->slow, c->failed);
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET }, sources[SOURCES_MAX];
	struct counts all = { 0 }, window = { 0 };
	struct epoll_event events[EVENTS];
	struct rlimit files;
	unsigned long total, sent = 0, open_now = 0, most_open = 0, late_ms = 0;
	unsigned long long begun, from, till, last = 0;
	unsigned *took_us, took = 0;
	int poll, source_count = 0;
	struct one *ones;
	double rate;

	if (argc < 7)
		return 2;
	inet_pton(AF_INET, argv[1], &to.sin_addr);
	to.sin_port = htons(atoi(argv[2]));
	rate = atof(argv[3]);
	total = rate * atof(argv[4]);
	from = atoll(argv[5]) * 1000000ull;
	till = atoll(argv[6]) * 1000000ull;
	for (int i = 7; i < argc && source_count < SOURCES_MAX; i++, source_count++) {
		sources[source_count] = (struct sockaddr_in){ .sin_family = AF_INET };
		inet_pton(AF_INET, argv[i], &sources[source_count].sin_addr);
	}
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	ones = calloc(files.rlim_cur < 1000000 ? files.rlim_cur : 1000000, sizeof(*ones));
	took_us = calloc(total + 1, sizeof(*took_us));
	poll = epoll_create1(0);
	if (!ones || !took_us || poll < 0)
		return 1;
	puts("begun");
	fflush(stdout);
	begun = now_ns();
	while (sent < total || open_now) {
		unsigned long long now = now_ns() - begun, due = sent * (1e9 / rate);
		struct timespec wait = { 0, 0 };

		while (sent < total && (due = sent * (1e9 / rate)) <= now) {
			int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), yes = 1;
			int in_window = due >= from && due < till, done;
			struct epoll_event want = { .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.fd = fd };

			sent++;
			last = due;
			all.due++;
			window.due += in_window;
			if ((now - due) / 1000000 > late_ms)
				late_ms = (now - due) / 1000000;
			done = fd < 0;
			if (!done && source_count) {
				setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof(yes));
				done = bind(fd, (void *)&sources[sent % source_count], sizeof(*sources)) < 0;
			}
			done = done || (connect(fd, (void *)&to, sizeof(to)) < 0 && errno != EINPROGRESS);
			done = done || epoll_ctl(poll, EPOLL_CTL_ADD, fd, &want) < 0;
			if (done) {
				all.failed++;
				window.failed += in_window;
				if (fd >= 0)
					close(fd);
				continue;
			}
			ones[fd] = (struct one){ .due = due, .in_window = in_window };
			if (++open_now > most_open)
				most_open = open_now;
			now = now_ns() - begun;
		}
		if (sent == total && now > last + LAST_WAIT_MS * 1000000ull)
			break;
		wait.tv_nsec = sent < total ? (due > now ? due - now : 0) : 100000000;
		int n = epoll_pwait2(poll, events, EVENTS, &wait, NULL);

		now = now_ns() - begun;
		for (int i = 0; i < n; i++) {
			int fd = events[i].data.fd, problem = 0, ended = 0;
			struct one *one = &ones[fd];
			socklen_t size = sizeof(problem);
			char text[512];

			if (!one->connected) {
				getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size);
				if (problem) {
					all.failed++;
					window.failed += one->in_window;
					close(fd);
					open_now--;
					continue;
				}
				one->connected = 1;
				took_us[took++] = (now - one->due) / 1000;
				all.connected++;
				window.connected += one->in_window;
				if (now - one->due >= SLOW_NS) {
					all.slow++;
					window.slow += one->in_window;
				}
			}
			for (;;) {
				ssize_t got = read(fd, text, sizeof(text));

				if (got > 0)
					continue;
				ended = got == 0 || errno != EAGAIN;
				break;
			}
			if (ended) {
				close(fd);
				open_now--;
			}
		}
	}
	/* Who never connected took longer than anybody waits. */
	unsigned long never = all.due - all.connected - all.failed;
	double seconds = (now_ns() - begun) / 1e9;

	qsort(took_us, took, sizeof(*took_us), by_size);
	printf("{");
	print_counts("all", &all);
	print_counts("window", &window);
	printf("\"never\": %lu, \"late_ms\": %lu, \"most_open\": %lu, \"seconds\": %.2f, \"rate\": %.0f, \"p50_us\": %u, \"p99_us\": %u, \"longest_us\": %u}\n", never, late_ms, most_open,
	       seconds, last ? all.due / (last / 1e9) : 0.0, took ? took_us[took / 2] : 0, took ? took_us[(unsigned)(took * 0.99)] : 0, took ? took_us[took - 1] : 0);
	return 0;
}
