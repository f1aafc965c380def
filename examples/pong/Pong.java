// Answers GET /pong/N with N bytes, at the port that is the first argument.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.concurrent.Executors;

public class Pong {
    static void answer(HttpExchange exchange) throws IOException {
        String path = exchange.getRequestURI().getPath();
        byte[] content;
        try {
            content = new byte[Integer.parseInt(path.substring(path.lastIndexOf('/') + 1))];
        } catch (NumberFormatException | NegativeArraySizeException wrong) {
            exchange.sendResponseHeaders(400, -1);
            exchange.close();
            return;
        }
        // -1 means that there is no content, and 0 means that its length is unknown.
        exchange.sendResponseHeaders(200, content.length == 0 ? -1 : content.length);
        exchange.getResponseBody().write(content);
        exchange.close();
    }

    public static void main(String[] arguments) throws IOException {
        System.setProperty("sun.net.httpserver.nodelay", "true");
        HttpServer server = HttpServer.create(new InetSocketAddress(Integer.parseInt(arguments[0])), 0);
        server.createContext("/", Pong::answer);
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
    }
}
