-- The orders of each customer that have no payment.
CREATE MATERIALIZED VIEW unpaid AS
SELECT   customer, count(*) AS orders, sum(cups) AS cups
FROM     orders LEFT ANTI JOIN payments ON orders.id = payments.order_id
GROUP BY customer
