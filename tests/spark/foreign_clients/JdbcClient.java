import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.Statement;

/** Runs the statements of its further arguments over a JDBC URL, and prints the first column of each row. */
public class JdbcClient {
    public static void main(String[] arguments) throws Exception {
        Connection connection = DriverManager.getConnection(arguments[0], "anyone", "");
        try {
            Statement statement = connection.createStatement();
            for (int i = 1; i < arguments.length; i++) {
                ResultSet rows = statement.executeQuery(arguments[i]);
                while (rows.next()) {
                    System.out.println(rows.getString(1));
                }
            }
            ResultSet tables = connection.getMetaData().getTables(null, "%", "%", null);
            while (tables.next()) {
                System.out.println(tables.getString(2) + "." + tables.getString(3));
            }
        } finally {
            connection.close();
        }
    }
}
