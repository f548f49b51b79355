/* lookup FAMILY NAME...: what a program hears of each name from the C library it was built with, one line a name. If TIMED is set, each line
   ends with the microseconds that the lookup took. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

int main(int argc, char **argv) {
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	hints.ai_family = argc > 1 && !strcmp(argv[1], "4") ? AF_INET : argc > 1 && !strcmp(argv[1], "6") ? AF_INET6 : AF_UNSPEC;
	for (int i = 2; i < argc; i++) {
		struct addrinfo *found = 0;
		struct timespec begun, ended;
		clock_gettime(CLOCK_MONOTONIC, &begun);
		int err = getaddrinfo(argv[i], 0, &hints, &found);
		clock_gettime(CLOCK_MONOTONIC, &ended);
		printf("%s", argv[i]);
		if (err)
			printf(" error %s", err == EAI_AGAIN ? "try again" : "no address");
		for (struct addrinfo *a = found; a; a = a->ai_next) {
			char text[INET6_ADDRSTRLEN];
			void *addr = a->ai_family == AF_INET ? (void *)&((struct sockaddr_in *)a->ai_addr)->sin_addr
			                                     : (void *)&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr;
			printf(" %s", inet_ntop(a->ai_family, addr, text, sizeof text));
		}
		if (getenv("TIMED"))
			printf(" %ld", (ended.tv_sec - begun.tv_sec) * 1000000 + (ended.tv_nsec - begun.tv_nsec) / 1000);
		printf("\n");
		if (found)
			freeaddrinfo(found);
	}
	return 0;
}
