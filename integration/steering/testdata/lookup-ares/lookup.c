/* lookup FAMILY NAME...: what a program hears of each name from c-ares, one line a name. */
#include <ares.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>

static void found(void *name, int status, int timeouts, struct ares_addrinfo *result) {
	(void)timeouts;
	printf("%s", (char *)name);
	if (status != ARES_SUCCESS)
		printf(" error %s", ares_strerror(status));
	for (struct ares_addrinfo_node *a = result ? result->nodes : 0; a; a = a->ai_next) {
		char text[INET6_ADDRSTRLEN];
		void *addr = a->ai_family == AF_INET ? (void *)&((struct sockaddr_in *)a->ai_addr)->sin_addr
		                                     : (void *)&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr;
		printf(" %s", inet_ntop(a->ai_family, addr, text, sizeof text));
	}
	printf("\n");
	if (result)
		ares_freeaddrinfo(result);
}

int main(int argc, char **argv) {
	ares_channel channel;
	struct ares_addrinfo_hints hints = {.ai_flags = ARES_AI_NOSORT, .ai_socktype = SOCK_STREAM};
	hints.ai_family = argc > 1 && !strcmp(argv[1], "4") ? AF_INET : argc > 1 && !strcmp(argv[1], "6") ? AF_INET6 : AF_UNSPEC;
	if (ares_library_init(ARES_LIB_INIT_ALL) != ARES_SUCCESS || ares_init(&channel) != ARES_SUCCESS)
		return 1;
	for (int i = 2; i < argc; i++) {
		ares_getaddrinfo(channel, argv[i], 0, &hints, found, argv[i]);
		for (;;) {
			fd_set readers, writers;
			struct timeval wait, *most;
			FD_ZERO(&readers);
			FD_ZERO(&writers);
			int n = ares_fds(channel, &readers, &writers);
			if (n == 0)
				break;
			most = ares_timeout(channel, 0, &wait);
			select(n, &readers, &writers, 0, most);
			ares_process(channel, &readers, &writers);
		}
	}
	ares_destroy(channel);
	return 0;
}
