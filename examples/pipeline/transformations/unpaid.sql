-- What each customer owes: of all orders, those without a payment.
CREATE MATERIALIZED VIEW unpaid AS
SELECT   customer, count(*) AS orders, sum(cups) AS cups
FROM     orders LEFT ANTI JOIN payments ON orders.id = payments.order_id
GROUP BY customer
