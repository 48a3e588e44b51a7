/*
 * A column without nulls: of all that Spark can ask a column for, each kind answers one or two.
 */
package headwater;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

public abstract class FullColumn extends ColumnVector {
  FullColumn(DataType type) {
    super(type);
  }

  public void close() {}

  public boolean hasNull() {
    return false;
  }

  public int numNulls() {
    return 0;
  }

  public boolean isNullAt(int row) {
    return false;
  }

  private UnsupportedOperationException other() {
    return new UnsupportedOperationException("this column holds " + type.catalogString());
  }

  public boolean getBoolean(int row) {
    throw other();
  }

  public byte getByte(int row) {
    throw other();
  }

  public short getShort(int row) {
    throw other();
  }

  public int getInt(int row) {
    throw other();
  }

  public long getLong(int row) {
    throw other();
  }

  public float getFloat(int row) {
    throw other();
  }

  public double getDouble(int row) {
    throw other();
  }

  public ColumnarArray getArray(int row) {
    throw other();
  }

  public ColumnarMap getMap(int row) {
    throw other();
  }

  public Decimal getDecimal(int row, int precision, int scale) {
    throw other();
  }

  public UTF8String getUTF8String(int row) {
    throw other();
  }

  public byte[] getBinary(int row) {
    throw other();
  }

  public ColumnVector getChild(int place) {
    throw other();
  }
}
