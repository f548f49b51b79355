/* lookup FAMILY NAME...: what a program hears of each name from the C library it was built with, one line a name. */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int main(int argc, char **argv) {
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	hints.ai_family = argc > 1 && !strcmp(argv[1], "4") ? AF_INET : argc > 1 && !strcmp(argv[1], "6") ? AF_INET6 : AF_UNSPEC;
	for (int i = 2; i < argc; i++) {
		struct addrinfo *found = 0;
		int err = getaddrinfo(argv[i], 0, &hints, &found);
		printf("%s", argv[i]);
		if (err)
			printf(" error %s", err == EAI_AGAIN ? "try again" : "no address");
		for (struct addrinfo *a = found; a; a = a->ai_next) {
			char text[INET6_ADDRSTRLEN];
			void *addr = a->ai_family == AF_INET ? (void *)&((struct sockaddr_in *)a->ai_addr)->sin_addr
			                                     : (void *)&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr;
			printf(" %s", inet_ntop(a->ai_family, addr, text, sizeof text));
		}
		printf("\n");
		if (found)
			freeaddrinfo(found);
	}
	return 0;
}
