import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.Hashtable;
import javax.naming.NamingException;
import javax.naming.directory.Attributes;
import javax.naming.directory.InitialDirContext;

/** Lookup SERVER NAME...: what a program hears of each name, by the C library and by Java's own resolver (JNDI), one line each. */
public class Lookup {
    public static void main(String[] args) throws NamingException {
        Hashtable<String, String> env = new Hashtable<>();
        env.put("java.naming.factory.initial", "com.sun.jndi.dns.DnsContextFactory");
        env.put("java.naming.provider.url", "dns://" + args[0]);
        InitialDirContext dns = new InitialDirContext(env);
        for (String name : Arrays.copyOfRange(args, 1, args.length)) {
            StringBuilder out = new StringBuilder(name);
            try {
                String[] found = Arrays.stream(InetAddress.getAllByName(name)).map(InetAddress::getHostAddress).sorted().toArray(String[]::new);
                out.append(' ').append(String.join(" ", found));
            } catch (UnknownHostException e) {
                out.append(" error");
            }
            for (String type : new String[] {"A", "AAAA", "TXT", "SRV"}) {
                try {
                    Attributes found = dns.getAttributes(name + ".", new String[] {type});
                    out.append(" | ").append(found.size() == 0 ? "nothing" : found.get(type).toString());
                } catch (NamingException e) {
                    out.append(" | ").append(e.getClass().getSimpleName());
                }
            }
            System.out.println(out);
        }
    }
}
