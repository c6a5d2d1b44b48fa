import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.DispatcherType;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;

import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.servlet.FilterHolder;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Apache Iceberg's own REST catalog, as its tests run it, over a JDBC catalog in a SQLite file.
 *
 * <p>The server of the test-fixtures artifact is not used because it listens on every interface and
 * lets everybody in: this one listens on the loopback interface and, when it is given a credential,
 * hands out tokens for it and asks for one with every request.
 *
 * <p>Arguments: port, SQLite file, warehouse folder, then "id:secret" or nothing.
 */
public final class Server {
  private Server() {}

  public static void main(String[] args) throws Exception {
    int port = Integer.parseInt(args[0]);
    Map<String, String> props = new HashMap<>();
    props.put("catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog");
    props.put("uri", "jdbc:sqlite:" + args[1] + "?journal_mode=WAL&busy_timeout=10000&synchronous=FULL");
    props.put("jdbc.schema-version", "V1");
    // One connection: with two, commits that this server had confirmed were gone after a SIGKILL
    // (tried with Iceberg 1.9.2 and sqlite-jdbc 3.46: up to 7 of the last commits in most rounds).
    props.put("clients", "1");
    props.put("warehouse", "file://" + args[2]);
    RESTCatalogAdapter adapter =
        new RESTCatalogAdapter(CatalogUtil.buildIcebergCatalog("rest", props, new Configuration()));

    ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
    context.addServlet(new ServletHolder(new RESTCatalogServlet(adapter)), "/*");
    if (args.length > 3 && !args[3].isEmpty()) {
      context.addFilter(new FilterHolder(new Guard(args[3])), "/*", java.util.EnumSet.of(DispatcherType.REQUEST));
    }
    org.eclipse.jetty.server.Server server =
        new org.eclipse.jetty.server.Server(new InetSocketAddress("127.0.0.1", port));
    server.setHandler(context);
    server.start();
    server.join();
  }

  /** Client credentials for a token; a token for everything else. */
  private static final class Guard implements Filter {
    private final String id;
    private final String secret;
    private final String basic;
    private final String token = java.util.UUID.randomUUID().toString();

    Guard(String credential) {
      int colon = credential.indexOf(':');
      id = credential.substring(0, colon);
      secret = credential.substring(colon + 1);
      basic = "Basic " + java.util.Base64.getEncoder().encodeToString(credential.getBytes(StandardCharsets.UTF_8));
    }

    @Override
    public void doFilter(ServletRequest rq, ServletResponse rs, FilterChain chain) throws IOException, ServletException {
      HttpServletRequest request = (HttpServletRequest) rq;
      HttpServletResponse response = (HttpServletResponse) rs;
      if (request.getRequestURI().endsWith("/oauth/tokens")) {
        // RFC 6749, section 2.3.1: in the form, or by HTTP Basic as DuckDB does.
        boolean known = id.equals(request.getParameter("client_id")) && secret.equals(request.getParameter("client_secret"))
            || basic.equals(request.getHeader("Authorization"));
        if (known && "client_credentials".equals(request.getParameter("grant_type"))) {
          answer(response, 200, "{\"access_token\":\"" + token + "\",\"token_type\":\"bearer\",\"expires_in\":3600}");
        } else {
          answer(response, 401, "{\"error\":\"invalid_client\",\"error_description\":\"unknown client or wrong secret\"}");
        }
        return;
      }
      if (!("Bearer " + token).equalsIgnoreCase(request.getHeader("Authorization"))) {
        answer(response, 401, "{\"error\":{\"message\":\"no valid token\",\"type\":\"NotAuthorizedException\",\"code\":401}}");
        return;
      }
      chain.doFilter(rq, rs);
    }

    private static void answer(HttpServletResponse response, int status, String body) throws IOException {
      response.setStatus(status);
      response.setContentType("application/json");
      response.getOutputStream().write(body.getBytes(StandardCharsets.UTF_8));
    }
  }
}
